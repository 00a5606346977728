"""What the caller hands over, seen as numpy arrays over the same memory, or a Misuse that says why not.

Accepted: numpy arrays (also bfloat16 of ml_dtypes), tensors that show their memory as PyTorch's do (all
dtypes of ours, bfloat16 included), anything with the buffer protocol, anything numpy takes by DLPack.
Nothing is copied. All checks come before an operation takes a sequence number.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailcut.errors import Misuse
from tailcut.types import DType

# A tensor's or numpy's name of a dtype -> ours; filled by dtype objects as they come.
_NAMES = {dtype.name.lower(): dtype for dtype in DType}
_BY_NUMPY: dict[Any, DType] = {
    np.dtype(dtype.name.lower()): dtype for dtype in DType if dtype is not DType.BFLOAT16
}
_BY_TENSOR: dict[Any, DType] = {}
SUPPORTED = ", ".join(_NAMES)
# numpy has no bfloat16 of its own; the engine only needs the memory
_VIEW = np.dtype(np.uint16)


class Described(NamedTuple):
    """An array as the engine needs it."""

    memory: NDArray[Any]  # over the caller's memory; the caller's object must be kept as long as this is used
    dtype: DType
    elements: int
    writable: bool


def describe(given: Any, name: str) -> Described:
    """The array called `name`; refuses what the engine cannot use."""
    if not isinstance(given, np.ndarray):
        return _describe_other(given, name)
    dtype = _BY_NUMPY.get(given.dtype)
    if dtype is None:
        dtype = _learn(given.dtype, name)
    flags = given.flags
    if not flags.c_contiguous:
        raise _not_contiguous(name, f"shape {given.shape} with strides {given.strides} bytes")
    if dtype is DType.BFLOAT16:
        given = given.view(_VIEW)
    return Described(given, dtype, given.size, flags.writeable)


def bounds(described: Described) -> tuple[int, int]:
    """First address, and the one behind the last."""
    start: int = described.memory.__array_interface__["data"][0]
    return start, start + described.memory.nbytes


def _learn(dtype: np.dtype[Any], name: str) -> DType:
    """A numpy dtype seen for the first time: bfloat16 of ml_dtypes, or none of ours."""
    if dtype.name == "bfloat16" and dtype.itemsize == 2:
        _BY_NUMPY[dtype] = DType.BFLOAT16
        return DType.BFLOAT16
    if dtype.newbyteorder("=") in _BY_NUMPY:
        raise Misuse(f"{name} has the byte order of another machine ({dtype.str})", reason="dtype")
    raise _unsupported(name, dtype.name)


def _describe_other(given: Any, name: str) -> Described:
    if hasattr(given, "data_ptr") and hasattr(given, "is_contiguous"):
        return _describe_tensor(given, name)
    try:
        view = memoryview(given)
    except TypeError:
        view = None
    if view is not None:
        return _describe_buffer(view, name)
    if hasattr(given, "__dlpack__"):
        try:
            return describe(np.from_dlpack(given), name)
        except (BufferError, RuntimeError, TypeError) as error:
            raise Misuse(f"{name} cannot be used by DLPack: {error}", reason="dtype") from None
    kind = type(given).__name__
    raise Misuse(f"{name} is {kind}, not an array (numpy, buffer protocol or DLPack)", reason="argument")


def _describe_buffer(view: memoryview, name: str) -> Described:
    if not view.c_contiguous:
        raise _not_contiguous(name, f"shape {view.shape} with strides {view.strides} bytes")
    try:
        return describe(np.asarray(view), name)
    except ValueError as error:
        if isinstance(error, Misuse):
            raise
        raise _unsupported(name, f"the buffer format {view.format!r}") from None


def _describe_tensor(given: Any, name: str) -> Described:
    """A tensor of PyTorch's shape, without importing PyTorch: about 2 us instead of 20 us by DLPack."""
    dtype = _BY_TENSOR.get(given.dtype)
    if dtype is None:
        text = str(given.dtype).rpartition(".")[2]
        if text not in _NAMES:
            raise _unsupported(name, text)
        dtype = _BY_TENSOR[given.dtype] = _NAMES[text]
    if given.device.type != "cpu":
        raise Misuse(f"{name} is on {given.device}, not in the memory of the CPU", reason="layout")
    if not given.is_contiguous():
        raise _not_contiguous(name, f"shape {tuple(given.shape)} with strides {given.stride()} elements")
    if given.requires_grad and not given.is_leaf:
        raise Misuse(f"{name} is part of a graph of gradients: pass tensor.detach()", reason="layout")
    count: int = given.numel()
    memory = _at(given.data_ptr(), count * dtype.itemsize)
    return Described(memory, dtype, count, True)


def _at(address: int, length: int) -> NDArray[Any]:
    """The bytes at an address. The caller keeps their owner alive."""
    if length == 0:
        return np.empty(0, np.uint8)
    owner: Any = (ctypes.c_uint8 * length).from_address(address)
    return np.frombuffer(owner, np.uint8)


def _unsupported(name: str, dtype: str) -> Misuse:
    return Misuse(f"{name} holds {dtype}; supported are {SUPPORTED}", reason="dtype")


def _not_contiguous(name: str, layout: str) -> Misuse:
    return Misuse(f"{name} is not contiguous in C order ({layout})", reason="layout")
