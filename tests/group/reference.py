"""What collectives must give, computed by numpy in rank order, and inputs to feed them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8")
} | {"bfloat16": BFLOAT16}
HALVES = ("float16", "bfloat16")
OPS = ("sum", "avg", "min", "max", "prod")


def contribution(dtype: str, count: int, rank: int, salt: int = 0) -> Array:
    """Rank's input: random, the same whenever asked for; factors near 1 so that products stay finite."""
    seed = zlib.crc32(f"{dtype} {count} {rank} {salt}".encode())
    rng = np.random.default_rng(seed)
    if DTYPES[dtype].kind in "iu":
        info = np.iinfo(DTYPES[dtype])
        return rng.integers(info.min, info.max, count, dtype=DTYPES[dtype], endpoint=True)
    return (rng.standard_normal(count) + 1.5).astype(DTYPES[dtype])


def whole_numbers(dtype: str, count: int, rank: int) -> Array:
    """An input whose sums are exact in any order."""
    return (np.arange(count) % 7 + rank).astype(DTYPES[dtype])


def reduced(op: str, inputs: Sequence[Array]) -> Array:
    """The reduction in rank order: 16-bit floats in float32 and rounded once, integers wrap."""
    dtype = inputs[0].dtype
    half = dtype.itemsize == 2 and dtype.kind not in "iu"
    wide = [each.astype(np.float32) if half else each for each in inputs]
    combine = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}[op]
    total = wide[0].copy()
    with np.errstate(over="ignore"):
        for each in wide[1:]:
            total = combine(total, each)
    if op == "avg":
        size = len(inputs)
        if dtype.kind in "iu":  # toward zero, as C divides
            quotient = np.abs(total.astype(object)) // size
            total = np.array(np.sign(total.astype(object)) * quotient, dtype=dtype)
        else:
            total = total / total.dtype.type(size)
    return total.astype(dtype)


def same_bits(got: Array, want: Array) -> bool:
    """Equal to the last bit (the inputs here hold no NaN)."""
    return got.dtype == want.dtype and got.tobytes() == want.tobytes()


def shard(count: int, size: int, rank: int) -> slice:
    """The elements rank owns: the first `count % size` ranks have one more."""
    base, extra = divmod(count, size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))
