"""What a collective of ours returns to PyTorch: a Work that waits natively, and has a future when asked.

Nothing is queued and no thread is woken for a caller that waits itself: it drives the engine. Only a Work
whose future was asked for goes to the completer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from tailcut.errors import CollectiveTimeout, TailcutError
from tailcut.group import Work
from tailcut.pytorch.completing import Completer
from tailcut.pytorch.profiler import span

_NO_LIMIT = timedelta(0)  # what PyTorch passes for "no time-out"


class CollectiveWork(dist.Work):
    """One collective in flight. `finish` copies results out of a buffer of ours, where there is one."""

    def __init__(
        self,
        work: Work | None,
        results: Sequence[torch.Tensor],
        completer: Completer,
        finish: Callable[[], None] | None = None,
        error: TailcutError | None = None,
    ) -> None:
        super().__init__()
        self._work = work
        self._results = results
        self._completer = completer
        self._finish = finish
        self._error = error
        self._lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._future_set = False
        self.reported = False  # somebody was told of the error

    # ---- what PyTorch calls

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Waits until it is over; raises tailcut's errors. When `timeout` is up the collective goes on."""
        if self._work is not None:
            with span("wait"):
                self.settle(timeout.total_seconds() if timeout > _NO_LIMIT else None)
        if self._error is not None:
            self.reported = True
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it is over, well or not; never waits."""
        work = self._work
        if work is None:
            return True
        if not work.done():
            return False
        self.settle(None)
        return True

    def is_success(self) -> bool:
        """Whether it is over and went well."""
        return self.is_completed() and self._error is None

    def exception(self) -> TailcutError | None:
        """The error it ended with, if it is over and did."""
        return self._error if self.is_completed() else None

    def synchronize(self) -> None:
        """As wait: there is no stream to put the waiting on."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
        return list(self._results)

    def source_rank(self) -> int:
        """Only a receive has one."""
        return -1

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the results. It never carries an exception: PyTorch's reducer would crash on one.

        Who asks from inside a backward pass gets the error at its end, out of backward().
        """
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = self._new_future()
        self._completer.take(self)
        return future

    # ---- for the completer

    @property
    def error(self) -> TailcutError | None:
        """The error it ended with, as far as is known."""
        return self._error

    def settle(self, timeout_s: float | None) -> None:
        """Waits, and keeps what came of it; raises only if the time was up before."""
        work = self._work
        if work is None:
            return
        error: TailcutError | None = None
        try:
            work.wait(timeout_s)
        except CollectiveTimeout as failure:
            if failure.reason == "wait_expired":
                raise
            error = failure
        except TailcutError as failure:
            error = failure
        with self._lock:  # the completer and a caller may both come here
            if self._work is None:
                return
            if error is None and self._finish is not None:
                self._finish()
            self._error = error
            self._finish = None
            self._work = None

    def complete_future(self) -> None:
        """Waits and completes the future, whatever came of it; callbacks run here."""
        self.settle(None)
        self._set_future()

    def _new_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return torch.futures.Future()

    def _set_future(self) -> None:
        with self._lock:  # the completer may have two reasons to come here, and a caller may have come before
            if self._future is None or self._future_set:
                return
            self._future_set = True
        self._future.set_result(list(self._results))
