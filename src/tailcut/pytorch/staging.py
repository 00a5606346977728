"""Tensors in the memory of a GPU: through pinned host memory, on streams of our own.

down: a copy to the host on one stream, after what the caller's stream has to do; a thread waits for it and
starts the collective, so that the caller does not. up: a copy back on another stream when the collective has
ended; the caller's stream waits for that, not the caller. Staged collectives have a tag of their own: their
thread starts them in the caller's order, beside those of tensors on the CPU.
"""

from __future__ import annotations

import queue
import threading
import time
from datetime import timedelta
from typing import Any

import torch

from tailcut.errors import CollectiveTimeout, TailcutError
from tailcut.group import Group
from tailcut.pytorch import calls
from tailcut.pytorch.calls import Call
from tailcut.pytorch.completing import Completer
from tailcut.pytorch.works import CollectiveWork

_TAG = 1  # tag 0 belongs to tensors on the CPU
_JOIN_S = 10.0
_NO_LIMIT = timedelta(0)


class StagedWork(CollectiveWork):
    """A collective on a GPU's tensors. It is over for its caller when the copy back is on a stream."""

    def __init__(self, call: Call, timeout_s: float, completer: Completer, up: torch.cuda.Stream) -> None:
        super().__init__(None, call.results, completer)
        self._call = call
        self._timeout_s = timeout_s
        self._up = up
        cuda: Any = torch.cuda  # not all of it is typed
        self._down_over, self._up_over = cuda.Event(), cuda.Event()
        self._begun = threading.Event()  # the collective was started, or could not be
        self._settled = False
        source = torch.empty(call.source.shape, dtype=call.source.dtype, pin_memory=True)
        target = source
        if call.collective != "all_reduce":
            target = torch.empty(call.target.shape, dtype=call.target.dtype, pin_memory=True)
        self._host = call._replace(source=source, target=target)

    def copy_down(self, down: torch.cuda.Stream) -> None:
        """On the caller's thread: all that its stream has to do so far comes before the copy."""
        down.wait_stream(torch.cuda.current_stream(self._call.source.device))
        with torch.cuda.stream(down):
            self._host.source.copy_(self._call.source, non_blocking=True)
            self._down_over.record(down)
        for tensor in (self._call.source, self._call.target):
            tensor.record_stream(down)
            tensor.record_stream(self._up)

    def begin(self, group: Group) -> None:
        """On the thread of the stager, in the order of calls."""
        try:
            self._down_over.synchronize()
            self._work = calls.start(self._host, group, _TAG, self._timeout_s)
        except TailcutError as error:
            self._error = error
        finally:
            self._begun.set()

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Waits for the network; then the caller's stream waits for the copy to the GPU."""
        self.settle(timeout.total_seconds() if timeout > _NO_LIMIT else None)
        if self._error is not None:
            self.reported = True
            raise self._error
        torch.cuda.current_stream(self._call.target.device).wait_event(self._up_over)
        return True

    def is_completed(self) -> bool:
        """Whether the network's part is over and the copy back on its stream."""
        if not self._begun.is_set():
            return False
        work = self._work
        if work is not None and not work.done():
            return False
        self.settle(None)
        return True

    def settle(self, timeout_s: float | None) -> None:
        """As for tensors on the CPU, and then the copy up."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        begun = time.monotonic()
        if not self._begun.wait(limit_s):
            what = f"the copy from the GPU, or one before it, was not over after {limit_s:g} s"
            raise CollectiveTimeout(what, reason="wait_expired")
        left_s = None if timeout_s is None else max(0.001, limit_s - (time.monotonic() - begun))
        super().settle(left_s)
        with self._lock:
            if self._settled:
                return
            self._settled = True
            if self._error is None:
                self._copy_up()

    def _copy_up(self) -> None:
        with torch.cuda.stream(self._up):
            self._call.target.copy_(self._host.target, non_blocking=True)
            if self._call.finish is not None:
                self._call.finish()
                for tensor in self._call.results:
                    tensor.record_stream(self._up)
            self._up_over.record(self._up)

    def _new_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return torch.futures.Future(devices=[self._call.target.device])

    def complete_future(self) -> None:
        """The future notes what is on the copying stream; who waits for it makes its own stream wait."""
        try:
            self.settle(None)
        except CollectiveTimeout as error:  # the GPU did not get there in time
            self._error = error
        with torch.cuda.stream(self._up):
            self._set_future()


class Stager:
    """Takes a group's calls on tensors of GPUs; one thread, from the first call on."""

    def __init__(self, group: Group, completer: Completer, name: str) -> None:
        self._group, self._completer, self._name = group, completer, name
        self._queue: queue.SimpleQueue[StagedWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}

    def start(self, call: Call, timeout_s: float) -> StagedWork:
        """The caller may go on: its stream is not held up either."""
        device = call.source.device
        with self._lock:  # the order of the queue is the order of calls
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            if device not in self._streams:
                cuda: Any = torch.cuda
                self._streams[device] = (cuda.Stream(device), cuda.Stream(device))
            down, up = self._streams[device]
            work = StagedWork(call, timeout_s, self._completer, up)
            work.copy_down(down)
            self._queue.put(work)
        return work

    def close(self) -> None:
        """Ends the thread; to be called when the group is closed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work.begin(self._group)
            del work  # holds the user's tensors
