"""Starts an MPI's ranks on the hosts of a lab: Hydra, the launcher of MPICH and Intel MPI, would use ssh.

In place of ssh it gets a script that enters the host's namespace. Every host then has an address of its own,
so no MPI takes two ranks for neighbours in one machine's memory.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from tailcut.lab import Hosts
from tailcut.lab.system import NETNS_FOLDER

# ssh's own options, the host's address, then words for a shell.
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
address=$1; shift
case $address in
%s
*) echo "no host of the lab: $address" >&2; exit 1 ;;
esac
exec nsenter --net="$namespace" -- sh -c "$*"
"""
ENVIRONMENT = {"FI_TCP_IFACE": "eth0"}


def options(hosts: Hosts, size: int, folder: Path) -> list[str]:
    """What to put behind mpiexec, itself started on host 0, so that rank i runs on host i."""
    addresses = [hosts.address(rank) for rank in range(size)]
    cases = [
        f"{address}) namespace={shlex.quote(str(NETNS_FOLDER / hosts.namespace(rank)))} ;;"
        for rank, address in enumerate(addresses)
    ]
    agent = folder / "agent"
    agent.write_text(_AGENT % "\n".join(cases), encoding="utf-8")
    agent.chmod(0o700)
    where = ["-hosts", ",".join(addresses), "-ppn", "1", "-iface", "eth0"]
    return ["-launcher", "ssh", "-launcher-exec", str(agent), *where]
