"""Ranges in the traces of torch.profiler: `tailcut:all_reduce`, `tailcut:wait`, on the thread that calls.

The profiler sees only the threads of its user, so a range has to be opened where the user waits, not where
the engine works.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.autograd.profiler as torch_profiler

PREFIX = "tailcut:"
_NOTHING = nullcontext()  # one for all: it holds no state


def span(name: str) -> AbstractContextManager[Any]:
    """A range `tailcut:NAME` around a with-block; nearly free while no profiler runs.

    PyTorch's own record_function costs several microseconds also then, as much as starting an operation.
    """
    if torch_profiler._is_profiler_enabled:
        return torch_profiler.record_function(PREFIX + name)
    return _NOTHING
