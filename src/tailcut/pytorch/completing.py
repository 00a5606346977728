"""One thread for each backend that completes the futures of collectives, in the order they were asked for.

It starts with the first such future. Callbacks of futures run on it, never on the thread that starts
collectives: a callback may start a collective itself and wait for it (PowerSGD does).
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

import torch

from tailcut.errors import TailcutError

log = logging.getLogger("tailcut.pytorch")

_TASKS_MAX = 16  # backward passes that ended by an error of their own leave an entry behind
_JOIN_S = 10.0


class Awaited(Protocol):
    """What the completer needs of a work."""

    reported: bool

    @property
    def error(self) -> TailcutError | None:
        """The error it ended with."""

    def is_completed(self) -> bool:
        """Whether it is over."""

    def complete_future(self) -> None:
        """Waits and completes."""


class Completer:
    """Completes futures in the order in which they were asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Awaited | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._tasks: dict[int, list[Awaited]] = {}

    def take(self, work: Awaited) -> None:
        """Sees to it that the work's future is completed."""
        self._watch(work)
        # Asked for inside a callback, which may wait for it: nobody else is free. And what is over needs no
        # other thread: there is no callback yet.
        if self._thread is threading.current_thread() or work.is_completed():
            work.complete_future()
            return
        self.see_to(work)

    def see_to(self, work: Awaited) -> None:
        """As take, for a work that must be brought to its end although nobody may ever wait for it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Ends the thread after what it still has to do; to be called when the group is closed."""
        thread = self._thread
        if thread is None:
            return
        self._queue.put(None)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work.complete_future()
            except Exception:
                log.exception("a future could not be completed")
            del work  # holds the user's tensors

    # ---- errors out of backward()

    def _watch(self, work: Awaited) -> None:
        """If a backward pass runs here, lets it end with the error of this work, should there be one."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            return
        with self._lock:
            works = self._tasks.get(task)
            if works is not None:
                works.append(work)
                return
            while len(self._tasks) >= _TASKS_MAX:
                del self._tasks[next(iter(self._tasks))]
            self._tasks[task] = [work]
        engine = torch.autograd.Variable._execution_engine
        # Twice: callbacks run in the order in which they were queued, and DDP queues its own, which leaves
        # DDP usable, after ours.
        engine.queue_callback(lambda: engine.queue_callback(lambda: self._raise_first(task)))

    def _raise_first(self, task: int) -> None:
        with self._lock:
            works = self._tasks.pop(task, [])
        for work in works:
            if work.error is not None and not work.reported:
                for each in works:
                    each.reported = True
                raise work.error
