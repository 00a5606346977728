"""Distance between the hosts: packets that reach the switch take a detour of the wanted length.

What a host's cable delivers is taken from the switch's port before the switch sees it, sent into a delay,
and enters the switch from there. So the order is: the host's shaper, the distance, loss, the queue of the
port towards the receiver. The delay is netem where the kernel has it, else a small process (relay.py).
"""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tailcut.lab import processes
from tailcut.lab.scenario import Delay
from tailcut.lab.system import LabError, entering, run, run_inside

START_TIMEOUT_S = 20.0
QUEUE_PACKETS = 20_000  # between the switch and the relay: more than any path of the lab holds


def build(
    switch: str, ports: Sequence[str], mtu: int, delay: Delay, seed: int
) -> tuple[str, subprocess.Popen[Any] | None]:
    """Puts the distance into the switch's namespace; returns what makes it, and its process if it is one."""
    process = None if _has_netem(switch) else _start_relay(switch, delay, seed)
    if process is None:
        run(["ip", "-n", switch, "link", "add", "far-in", "type", "veth", "peer", "name", "far-out"])
        run(["tc", "-n", switch, "qdisc", "replace", "dev", "far-in", "root", *_netem(delay)])
        for device in ("far-in", "far-out"):
            run_inside(switch, ["ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off"])
    lines = [
        f"link set far-in mtu {mtu} txqueuelen {QUEUE_PACKETS} up",
        f"link set far-out mtu {mtu} master switch0",
        "link set far-out up",
    ]
    run(["ip", "-n", switch, "-batch", "-"], text="\n".join(lines) + "\n")
    run(["bridge", "-n", switch, "link", "set", "dev", "far-out", "learning", "off", "flood", "off"])
    table = ["add table netdev far"]
    for port in ports:
        hook = f"type filter hook ingress device {port} priority 0; policy accept;"
        table.append(f"add chain netdev far {port} {{ {hook} }}")
        table.append(f"add rule netdev far {port} fwd to far-in")
    run_inside(switch, ["nft", "-f", "-"], text="\n".join(table) + "\n")
    return ("netem" if process is None else "relay"), process


def _has_netem(switch: str) -> bool:
    try:
        run(["tc", "-n", switch, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"])
    except LabError:
        return False
    run(["tc", "-n", switch, "qdisc", "delete", "dev", "lo", "root"])
    return True


def _netem(delay: Delay) -> list[str]:
    words = ["netem", "limit", str(QUEUE_PACKETS), "delay", f"{delay.round_trip_ms / 2}ms"]
    if delay.jitter_ms:
        words += [f"{delay.jitter_ms}ms", "distribution", "normal"]
    if delay.reorder_percent:
        # netem sends reordered packets at once, the relay sends them late: overtaking is the same.
        words += ["reorder", f"{delay.reorder_percent}%"]
    return words


def _start_relay(switch: str, delay: Delay, seed: int) -> subprocess.Popen[Any]:
    settings = [delay.round_trip_ms / 2, delay.jitter_ms, delay.reorder_percent, delay.reorder_ms, seed]
    command = [sys.executable, "-m", "tailcut.lab.relay", "far-in", "far-out", *map(str, settings)]
    process = processes.start(
        [*entering(switch), *command],
        processes.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
    if not ready or process.stdout.readline() != "ready\n":
        process.kill()
        said = process.communicate()[1].strip()
        raise LabError(f"the relay that makes the distance did not start: {said or 'it said nothing'}")
    return process
