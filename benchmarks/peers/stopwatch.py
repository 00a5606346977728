"""Processor time the hook takes of the training thread, and how much of it is native: for ddp_overhead.py.

Processor time, because on a busy machine the rest says more about the others than about the hook.
"""

from __future__ import annotations

import time
from typing import Any

from tailcut.group import Group


class Stopwatch:
    """Stands before the native channel of a group, and between DDP and its models: some 2 us a bucket."""

    def __init__(self, group: Group) -> None:
        self.hook_ns = 0  # in the hook and at the end of backward
        self.native_ns = 0  # of that, in native code
        self.buckets = 0
        link: Any = group._link
        self._channel = link._channel
        link._channel = self

    def watch(self, attached: Any) -> None:
        """From now on, what is done for this model counts."""
        reduce, end_step = attached.reduce, attached._end_step

        def timed_reduce(bucket: Any) -> Any:
            self.buckets += 1
            begin = time.thread_time_ns()
            future = reduce(bucket)
            self.hook_ns += time.thread_time_ns() - begin
            return future

        def timed_end_step() -> Any:
            begin = time.thread_time_ns()
            error = end_step()
            self.hook_ns += time.thread_time_ns() - begin
            return error

        attached.reduce, attached._end_step = timed_reduce, timed_end_step

    def start(self, *arguments: Any) -> Any:
        begin = time.thread_time_ns()
        operation = self._channel.start(*arguments)
        self.native_ns += time.thread_time_ns() - begin
        return _Watched(operation, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _Watched:
    """An operation of the native channel whose waiting is timed."""

    def __init__(self, operation: Any, watch: Stopwatch) -> None:
        self._operation, self._watch = operation, watch

    def wait(self, timeout_ns: int) -> Any:
        begin = time.thread_time_ns()
        over = self._operation.wait(timeout_ns)
        self._watch.native_ns += time.thread_time_ns() - begin
        return over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)
