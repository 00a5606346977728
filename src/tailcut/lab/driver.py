"""Lets the faults of a scenario happen when their time has come."""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from tailcut.lab.faults import Event
from tailcut.lab.hosts import Hosts
from tailcut.lab.system import LabError

END_DEADLINE_S = 10.0


class Driver:
    """A thread beside the job; use it as a context manager. When the block ends it puts right what it broke,
    but for the dead.

    spare: gives processes that no fault may hit: the background's, which are no part of the job.
    told: is called after each event, from the driver's thread.
    """

    def __init__(
        self,
        hosts: Hosts,
        timelines: Sequence[Iterator[Event]],
        *,
        spare: Callable[[], set[int]] = set,
        told: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._hosts, self._spare, self._told = hosts, spare, told
        self._events = heapq.merge(*timelines, key=lambda event: event.at_ns)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailcut-faults", daemon=True)
        self._paused: dict[int, set[int]] = {}
        self._broken: set[tuple[str, int, int | None]] = set()
        self.happened: list[Event] = []
        self.error: Exception | None = None  # what ended the driver too early

    def __enter__(self) -> Driver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(END_DEADLINE_S)

    def killed(self) -> set[int]:
        """The hosts whose processes a fault has killed."""
        return {event.host for event in list(self.happened) if event.kind == "kill" and event.begins}

    def _run(self) -> None:
        start_ns = time.monotonic_ns()
        try:
            for event in self._events:
                ahead_s = (start_ns + event.at_ns - time.monotonic_ns()) * 1e-9
                if self._stop.wait(max(0.0, ahead_s)):
                    break
                self._do(event)
                self.happened.append(event)
                self._told(event)
        except (LabError, OSError) as error:
            self.error = error
        finally:
            self._put_right()

    def _do(self, event: Event) -> None:
        if event.kind in ("link", "cut"):
            what = (event.kind, event.host, event.to)
            self._set(what, broken=event.begins)
            (self._broken.add if event.begins else self._broken.discard)(what)
        elif event.kind == "kill" and event.begins:
            self._signal(self._job(event.host), signal.SIGKILL)
        elif event.kind == "pause" and event.begins:
            pids = self._job(event.host)
            self._paused[event.host] = self._paused.get(event.host, set()) | pids
            self._signal(pids, signal.SIGSTOP)
        elif event.kind == "pause":
            self._signal(self._paused.pop(event.host, set()), signal.SIGCONT)

    def _set(self, what: tuple[str, int, int | None], *, broken: bool) -> None:
        kind, host, to = what
        if kind == "link":
            self._hosts.set_link(host, up=not broken)
        else:
            self._hosts.cut(host, to, restore=not broken)

    def _job(self, host: int) -> set[int]:
        return self._hosts.pids(host) - self._spare()

    @staticmethod
    def _signal(pids: set[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _put_right(self) -> None:
        for host in list(self._paused):
            self._signal(self._paused.pop(host), signal.SIGCONT)
        for what in list(self._broken):
            with contextlib.suppress(LabError):
                self._set(what, broken=False)
        self._broken.clear()
