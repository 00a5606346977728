"""A job in a lab: one command on every host, its output with the rank in front, and one exit status."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tailcut.lab import processes
from tailcut.lab.driver import Driver
from tailcut.lab.faults import Event
from tailcut.lab.opened import Lab

MASTER_PORT = 29_500  # torchrun's; in a lab every port is free
POLL_S = 0.05
INTERRUPT_WAIT_S = 3.0  # between Ctrl-C and the end of who does not listen
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93)  # of a terminal, for rank 0, 1, ...

Say = Callable[[str, bytes], None]  # a prefix and a line


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    status: int  # the worst of those that count; 128 + n for signal n
    statuses: tuple[int, ...]  # by rank
    excused: tuple[int, ...]  # ranks a fault of the scenario has killed: their status does not count
    timed_out: bool = False


def environment_of(lab: Lab, rank: int) -> dict[str, str]:
    """What torchrun would set on one process a host, and which interface to use."""
    return processes.environment(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(lab.hosts.n),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": lab.hosts.address(0),
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "TAILCUT_SOCKET_IFNAME": "=eth0",
        }
    )


class Job:
    """Runs the command until every rank has ended."""

    def __init__(self, lab: Lab, command: Sequence[str], say: Say) -> None:
        self._lab, self._command, self._say = lab, list(command), say
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._rests: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._returns: list[int] = []  # hosts whose command is to be started again; the driver adds to it

    def run(self, timeout_s: float | None = None) -> End:
        """Ctrl-C is passed on to the ranks and raised again when they have ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for rank in range(self._lab.hosts.n):
            self._start(rank)
        with self._lab.faults(pauses=True, told=self._told) as driver:
            try:
                while self._is_alive(driver):
                    self._pump(POLL_S)
                    while self._returns:
                        self._start(self._returns.pop())
                    if deadline is not None and time.monotonic() > deadline:
                        self._end(signal.SIGTERM)
                        return self._result(driver, timed_out=True)
                self._drain()
                return self._result(driver)
            except BaseException:
                self._end(signal.SIGINT)
                raise

    def _start(self, rank: int) -> None:
        process = self._lab.hosts.spawn(
            rank,
            self._command,
            environment_of(self._lab, rank),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes from us, once
        )
        self._ranks[rank] = process
        self._rests[rank] = b""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)

    def _told(self, event: Event) -> None:
        """From the driver's thread. Processes are started by the main one: they end with their starter."""
        self._say("lab", str(event).encode())
        if event.kind == "kill" and not event.begins:
            self._returns.append(event.host)

    def _is_alive(self, driver: Driver) -> bool:
        if driver.error is not None:
            raise driver.error
        return any(process.poll() is None for process in self._ranks.values())

    def _pump(self, wait_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(wait_s)
            return
        for key, _ in self._selector.select(wait_s):
            self._read(key.fileobj, key.data)

    def _read(self, pipe: Any, rank: int) -> None:
        part = pipe.read(1 << 16)
        if part is None:
            return
        lines = (self._rests[rank] + part).split(b"\n")
        self._rests[rank] = lines.pop()
        if not part:
            self._selector.unregister(pipe)
            pipe.close()
            if self._rests[rank]:
                lines.append(self._rests.pop(rank))
                self._rests[rank] = b""
        for line in lines:
            self._say(str(rank), line)

    def _drain(self) -> None:
        """What the ranks said last. A grandchild may hold the pipe open: a second is enough."""
        until = time.monotonic() + 1.0
        while self._selector.get_map() and time.monotonic() < until:
            self._pump(0.05)

    def _end(self, number: signal.Signals) -> None:
        for process in self._ranks.values():
            _signal_session(process, number)
        until = time.monotonic() + INTERRUPT_WAIT_S
        while time.monotonic() < until and any(process.poll() is None for process in self._ranks.values()):
            self._pump(POLL_S)
        for process in self._ranks.values():
            _signal_session(process, signal.SIGKILL)
            process.wait()
        self._drain()

    def _result(self, driver: Driver, *, timed_out: bool = False) -> End:
        statuses = tuple(_status(self._ranks[rank]) for rank in sorted(self._ranks))
        killed = 128 + signal.SIGKILL
        excused = tuple(rank for rank in sorted(driver.killed()) if statuses[rank] == killed)
        counted = [status for rank, status in enumerate(statuses) if rank not in excused]
        return End(max(counted, default=0), statuses, excused, timed_out)


def printer(*, colour: bool) -> Say:
    """Writes lines to standard output, each with its rank in front."""

    def say(prefix: str, line: bytes) -> None:
        head = f"[{prefix}] "
        if colour:
            number = COLOURS[int(prefix) % len(COLOURS)] if prefix.isdigit() else 1
            head = f"\x1b[{number}m{head}\x1b[0m"
        sys.stdout.buffer.write(head.encode() + line + b"\n")
        sys.stdout.flush()

    return say


def _status(process: subprocess.Popen[bytes]) -> int:
    code = process.wait()
    return 128 - code if code < 0 else code


def _signal_session(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
