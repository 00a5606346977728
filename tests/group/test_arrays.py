"""What the engine cannot use is refused with a text that says why; nothing is copied."""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tailcut import Misuse
from tailcut.group.arrays import bounds, describe
from tailcut.types import DType

GOOD: list[tuple[Any, DType, int]] = [
    (np.zeros(3, np.float32), DType.FLOAT32, 3),
    (np.zeros((2, 3), np.float64), DType.FLOAT64, 6),
    (np.zeros((), np.int64), DType.INT64, 1),
    (np.zeros(0, np.int32), DType.INT32, 0),
    (np.zeros(5, np.longlong), DType.INT64, 5),
    (np.zeros(4, np.float16)[1:], DType.FLOAT16, 3),
    (np.zeros(4, ml_dtypes.bfloat16), DType.BFLOAT16, 4),
    (np.zeros((4, 1), np.uint8).T, DType.UINT8, 4),
    (bytearray(7), DType.UINT8, 7),
    (memoryview(bytearray(8)).cast("f"), DType.FLOAT32, 2),
    (array.array("d", [1, 2]), DType.FLOAT64, 2),
    (torch.zeros(2, 2, dtype=torch.bfloat16), DType.BFLOAT16, 4),
    (torch.zeros(3, dtype=torch.int64), DType.INT64, 3),
    (torch.empty(0), DType.FLOAT32, 0),
    (torch.zeros(3, requires_grad=True), DType.FLOAT32, 3),
]


@pytest.mark.parametrize(("given", "dtype", "count"), GOOD)
def test_accepted(given: Any, dtype: DType, count: int) -> None:
    described = describe(given, "array")
    assert (described.dtype, described.elements, described.writable) == (dtype, count, True)
    assert described.memory.nbytes == count * dtype.itemsize
    assert described.memory.flags.c_contiguous


@pytest.mark.parametrize("given", [np.arange(6.0)[2:], torch.arange(6.0)[2:], array.array("d", range(6))])
def test_the_memory_is_the_callers(given: Any) -> None:
    memory = describe(given, "array").memory.reshape(-1).view(np.uint8)
    memory[:] = 0
    assert [float(value) for value in given] == [0.0] * len(given)


def test_read_only_is_told() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert not describe(frozen, "array").writable
    assert not describe(b"abc", "array").writable


def test_bounds() -> None:
    whole = np.zeros(10, np.float32)
    start, end = bounds(describe(whole, "whole"))
    assert end - start == 40
    assert bounds(describe(whole[2:4], "part")) == (start + 8, start + 16)


SUPPORTED = "supported are float32, float64, float16, bfloat16, int32, int64, uint8"
BAD: list[tuple[Any, str, str]] = [
    (np.zeros(3, np.uint32), f"grads holds uint32; {SUPPORTED}", "dtype"),
    (np.zeros(3, bool), "grads holds bool", "dtype"),
    (np.zeros(3, complex), "grads holds complex128", "dtype"),
    (np.zeros(3, ml_dtypes.float8_e4m3fn), "grads holds float8_e4m3fn", "dtype"),
    (np.array([None]), "grads holds object", "dtype"),
    (np.zeros(3, "M8[s]"), "grads holds datetime64[s]", "dtype"),
    (np.zeros(3, ">f4"), "grads has the byte order of another machine (>f4)", "dtype"),
    (np.zeros(6)[::2], "grads is not contiguous in C order (shape (3,) with strides (16,) bytes)", "layout"),
    (np.zeros((3, 3)).T, "grads is not contiguous in C order", "layout"),
    (np.zeros(6)[::-1], "grads is not contiguous", "layout"),
    (memoryview(bytearray(8))[::2], "grads is not contiguous in C order (shape (4,) with strides", "layout"),
    (array.array("h", [1]), "grads holds int16", "dtype"),
    (torch.zeros(3, dtype=torch.int8), "grads holds int8", "dtype"),
    (torch.zeros(3, 3).t(), "grads is not contiguous in C order (shape (3, 3) with strides (1, 3)", "layout"),
    (torch.zeros(3, device="meta"), "grads is on meta, not in the memory of the CPU", "layout"),
    (torch.zeros(3, requires_grad=True) * 2, "grads is part of a graph of gradients", "layout"),
    ([1.0, 2.0], "grads is list, not an array", "argument"),
    (3.0, "grads is float, not an array", "argument"),
    (None, "grads is NoneType, not an array", "argument"),
    ("text", "grads is str, not an array", "argument"),
]


@pytest.mark.parametrize(("given", "text", "reason"), BAD, ids=[text for _, text, _ in BAD])
def test_refused(given: Any, text: str, reason: str) -> None:
    with pytest.raises(Misuse) as caught:
        describe(given, "grads")
    assert text in str(caught.value)
    assert caught.value.reason == reason


def test_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(Misuse, match="grads"):
        describe(torch.eye(3).to_sparse(), "grads")
