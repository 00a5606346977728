"""Names that say whose a namespace is, and the removal of what dead labs left behind.

A lab that ends, fails or is interrupted removes its own namespaces. One that was killed with SIGKILL cannot:
its namespaces carry its pid and start time, so that anyone can tell that their owner is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

from tailcut.lab import cpulimit
from tailcut.lab.system import NETNS_FOLDER, LabError, require, run

KILL_DEADLINE_S = 5.0  # a process that SIGKILL has not ended by then is stuck in the kernel
_NAME = re.compile(r"^tailcut-(?P<pid>\d+)-(?P<start>\d+)-(?P<serial>\d+)-(?P<role>[a-z]+\d*)$")


def start_of(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command's name, in brackets, may hold anything
    state, start = fields[0], int(fields[19])
    return None if state in "ZX" else start


def prefix(serial: int) -> str:
    """The beginning of the names of this process's lab number `serial`."""
    pid = os.getpid()
    return f"tailcut-{pid}-{start_of(pid)}-{serial}-"


def namespaces() -> list[str]:
    """The names of all namespaces that a lab, dead or alive, has made."""
    words = (line.split() for line in run(["ip", "netns", "list"]).splitlines())
    return [parts[0] for parts in words if parts and _NAME.match(parts[0])]


def owner_lives(name: str) -> bool:
    match = _NAME.match(name)
    return match is not None and start_of(int(match["pid"])) == int(match["start"])


def remove(names: list[str]) -> None:
    """Ends every process inside the namespaces and removes them; raises LabError for what would not go."""
    failures = []
    for name in names:
        try:
            _end_processes(name)
            run(["ip", "netns", "delete", name])
        except LabError as error:
            if (NETNS_FOLDER / name).exists():  # otherwise someone else was cleaning too, and faster
                failures.append(str(error))
    if failures:
        raise LabError("; ".join(failures))


def clean() -> list[str]:
    """Removes the namespaces and cgroups of labs whose process is gone; returns the namespaces' names."""
    require()
    dead = [name for name in namespaces() if not owner_lives(name)]
    remove(dead)
    for name in cpulimit.names():
        if _NAME.match(name) and not owner_lives(name):
            cpulimit.remove(name)
    return dead


def _end_processes(name: str) -> None:
    deadline = time.monotonic() + KILL_DEADLINE_S
    while pids := [int(word) for word in run(["ip", "netns", "pids", name]).split()]:
        if os.getpid() in pids:
            raise LabError(f"{name}: this very process is inside; leave the namespace first")
        if time.monotonic() > deadline:
            raise LabError(f"{name}: processes {pids} outlived SIGKILL for {KILL_DEADLINE_S:.0f} s")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
