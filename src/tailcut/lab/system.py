"""What the lab needs of the machine: root, iproute2, nftables, ethtool; and how it calls them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

NETNS_FOLDER = Path("/run/netns")
COMMAND_TIMEOUT_S = 30.0  # none of these takes a second; a kernel stuck in a namespace must not hang the lab

# tool -> the Debian package that has it
TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "nft": "nftables",
    "ethtool": "ethtool",
    "nsenter": "util-linux",
}


class LabError(RuntimeError):
    """The lab could not be built, used or removed; the text says which command failed and why."""


def missing_tools() -> str:
    """What keeps the lab from working here, in words with the remedy; empty when nothing does."""
    lacking = sorted(tool for tool in TOOLS if shutil.which(tool) is None)
    problems = []
    if os.geteuid() != 0:
        problems.append("network namespaces need root: run this as root, or by `tailcut lab run`")
    if lacking:
        packages = " ".join(sorted({TOOLS[tool] for tool in lacking}))
        problems.append(f"not found: {', '.join(lacking)}: apt-get install {packages}")
    return "; ".join(problems)


def require() -> None:
    """Raises LabError with the remedy when the lab cannot work on this machine."""
    problem = missing_tools()
    if problem:
        raise LabError(problem)


def run(argv: Sequence[str], *, text: str | None = None) -> str:
    """Runs one short command, with `text` as its input, and returns what it printed."""
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(argv)}: no end after {COMMAND_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip()
        raise LabError(f"{' '.join(argv)}: exit status {done.returncode}: {reason}")
    return done.stdout


def entering(namespace: str) -> list[str]:
    """What to put before a command to run it in the namespace (nsenter becomes it: same pid)."""
    return ["nsenter", f"--net={NETNS_FOLDER / namespace}", "--"]


def run_inside(namespace: str, argv: Sequence[str], *, text: str | None = None) -> str:
    return run([*entering(namespace), *argv], text=text)


def write_sysctls(namespace: str, values: dict[str, str]) -> None:
    """Sets values below /proc/sys/net in a namespace (/proc/sys/net is the reader's own namespace's)."""
    lines = [f"echo {value} > /proc/sys/net/{name}" for name, value in values.items()]
    run_inside(namespace, ["sh", "-e"], text="\n".join(lines) + "\n")
