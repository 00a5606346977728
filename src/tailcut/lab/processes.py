"""Processes that end with their lab, and signals that do not tear the lab in half."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

TERMINATE_WAIT_S = 2.0  # between SIGTERM and SIGKILL for what was spawned
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def start(argv: Sequence[str], env: Mapping[str, str] | None, **options: Any) -> subprocess.Popen[Any]:
    """Starts a process that the kernel ends when the calling thread ends, even by SIGKILL."""
    parent = os.getpid()
    return subprocess.Popen(argv, env=env, preexec_fn=lambda: _die_with(parent), **options)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, in which its Python also finds what this one finds."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, **(extra or {})}


def end(processes: list[subprocess.Popen[Any]]) -> None:
    """SIGTERM for those that live, SIGKILL for those that do not listen."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.terminate()
    for process in living:
        try:
            process.wait(TERMINATE_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def signals_held() -> Iterator[None]:
    """Signals that would interrupt wait until the block ends: nothing is half made or half removed."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


class ExitOnSignals:
    """Lets SIGTERM and SIGHUP raise SystemExit, as SIGINT raises KeyboardInterrupt.

    By default they end Python without any clean-up. Handlers someone else has set stay.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _exit)

    def stop(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _die_with(parent: int) -> None:
    """In the child, before it becomes the command."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    if os.getppid() != parent:  # the parent went before the lines above
        os._exit(1)
