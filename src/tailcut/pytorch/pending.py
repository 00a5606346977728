"""The gradients of a bucket on their way: a future completed by whoever needs it first.

No thread waits for operations in order to complete futures. While they run the native engine works alone, and
at the end of backward the training thread has nothing to do but to wait: it drives the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Future = torch.futures.Future[Any]


class Pending(Future):
    """A future that is completed by `settle`, which must be harmless when called again.

    Who waits for it, or for what follows from it, settles it: hooks around ours may do so within backward.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        super().__init__()
        self._settle = settle

    def wait(self) -> Any:
        """As of any future."""
        self._settle()
        return super().wait()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """As of any future."""
        following = super().then(callback)
        outer = Pending(self._settle)
        following.add_done_callback(outer._follow)
        return outer

    def _follow(self, done: Future) -> None:
        try:
            value = done.value()
        except Exception as error:  # of the callback
            self.set_exception(error)
            return
        self.set_result(value)


class Reduction:
    """One bucket of one step: the operation, and the future that DDP was given for it.

    The future always gets the buffer, never an exception: DDP would lose the exception's type and break.
    """

    __slots__ = ("_buffer", "_finish", "_left", "future")

    def __init__(self, buffer: torch.Tensor, finish: Callable[[], None]) -> None:
        self._left = [(buffer, finish)]  # one entry: whoever takes it out settles
        self.future = Pending(self.settle)

    def settle(self) -> None:
        """Waits for the operation, by `finish`, which keeps its error to itself, and completes the future."""
        try:
            buffer, finish = self._left.pop()
        except IndexError:
            return
        finish()
        self.future.set_result(buffer)
