"""Other people's traffic: a ring between two hosts (ring.py), and how much of it got through."""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from tailcut.lab import processes
from tailcut.lab import scenario as scenarios
from tailcut.lab.bursts import Bursts
from tailcut.lab.hosts import Hosts
from tailcut.lab.ring import Settings
from tailcut.lab.system import LabError

FIRST_PORT = 27_100  # below Linux's ephemeral ports (32768), away from those that jobs are given here
START_TIMEOUT_S = 20.0
HEAD_START_S = 0.3  # between the word to begin and the first byte: all connections stand by then
GOODPUT_FLOOR = 0.9  # of what the background gets beside Gloo; below it a result is void


@dataclass(frozen=True, slots=True)
class Reading:
    """The background's counters at one moment."""

    at_ns: int
    received_bytes: int
    on_ns: int  # for how long it has been on since it began

    def mbit_since(self, before: Reading) -> float:
        """Goodput of both directions together, while it was on."""
        on_ns = self.on_ns - before.on_ns
        return (self.received_bytes - before.received_bytes) * 8e3 / on_ns if on_ns else 0.0

    def on_share_since(self, before: Reading) -> float:
        return (self.on_ns - before.on_ns) / max(1, self.at_ns - before.at_ns)


class Background:
    """The ring of a scenario in a lab; use it as a context manager."""

    def __init__(self, hosts: Hosts, settings: scenarios.Background, seed: int) -> None:
        self._hosts, self._settings, self._seed = hosts, settings, seed
        self._bursts = Bursts(settings.on_ms, settings.off_ms, seed)
        self._counters: list[memoryview] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._begin_ns = 0

    def __enter__(self) -> Background:
        try:
            for side in (0, 1):
                self._start(side)
            for process in self._processes:
                self._await_ready(process)
            self._begin_ns = time.monotonic_ns() + round(HEAD_START_S * 1e9)
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(f"{self._begin_ns}\n")
                process.stdin.flush()
            time.sleep(HEAD_START_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        processes.end(self._processes)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()

    def pids(self) -> set[int]:
        return {process.pid for process in self._processes}

    def read(self) -> Reading:
        """LabError when the traffic has ended: a figure beside it would be of another scenario."""
        for process in self._processes:
            if process.poll() is not None:
                assert process.stderr is not None
                said = process.stderr.read().strip()
                raise LabError(f"the background traffic has ended ({process.returncode}): {said}")
        now = time.monotonic_ns()
        on_ns = self._bursts.on_until_ns(max(0, now - self._begin_ns))
        return Reading(now, sum(counter[0] for counter in self._counters), on_ns)

    def _start(self, side: int) -> None:
        first, second = self._settings.hosts
        memory = os.memfd_create("tailcut-background")
        os.ftruncate(memory, 8)
        self._counters.append(memoryview(mmap.mmap(memory, 8)).cast("Q"))
        settings = Settings(
            side=side,
            members=self._settings.members,
            addresses=(self._hosts.address(first), self._hosts.address(second)),
            port=FIRST_PORT,
            message_bytes=self._settings.message_bytes,
            on_ms=self._settings.on_ms,
            off_ms=self._settings.off_ms,
            rate_mbit=self._settings.rate_mbit,
            seed=self._seed,
            counter=memory,
        )
        command = [sys.executable, "-m", "tailcut.lab.ring", json.dumps(asdict(settings))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._processes.append(
            self._hosts.spawn(
                self._settings.hosts[side],
                command,
                processes.environment(),
                text=True,
                pass_fds=(memory,),
                **pipes,
            )
        )
        os.close(memory)

    def _await_ready(self, process: subprocess.Popen[Any]) -> None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        if not ready or process.stdout.readline() != "ready\n":
            process.kill()
            assert process.stderr is not None
            raise LabError(f"the background traffic did not start: {process.stderr.read().strip()}")
