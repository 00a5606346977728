"""Inputs whose reduction is exact in any order and in any dtype, and the check of the results.

A long pattern per rank; operation i takes the part that begins at element i mod 16, so that a result left
over from the operation before shows. Sums stay below the integers a dtype can no longer tell apart, products
are powers of two.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SHIFTS = 16  # operations until the same input comes again
PATTERN_MAX = 251  # a prime: neighbouring elements and ranks differ
# The largest integer up to which a dtype counts every one.
EXACT = {
    "float32": 1 << 24,
    "float64": 1 << 53,
    "float16": 1 << 11,
    "bfloat16": 1 << 8,
    "int32": (1 << 31) - 1,
    "int64": (1 << 63) - 1,
    "uint8": (1 << 8) - 1,
}
# The largest power of two a dtype holds.
POWERS = {
    "float32": 127,
    "float64": 1023,
    "float16": 15,
    "bfloat16": 127,
    "int32": 30,
    "int64": 62,
    "uint8": 7,
}
OPS = ("sum", "avg", "min", "max", "prod")
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is not as it should be in one result."""

    elements: int
    text: str


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype of this name; numpy has no bfloat16 of its own, ml_dtypes has."""
    if name == "bfloat16":
        bfloat16: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return bfloat16
    return np.dtype(name)


def refusal(dtype: str, op: str, size: int) -> str:
    """Why results of this kind cannot be checked exactly among so many ranks; empty when they can."""
    if dtype not in EXACT:
        return f"no such dtype: {dtype}; there are {', '.join(EXACT)}"
    if op not in OPS:
        return f"no such reduction: {op}; there are {', '.join(OPS)}"
    if op == "avg" and dtype in ("int32", "int64", "uint8"):
        return f"a mean of {dtype} is not exact; take a float"
    fits = POWERS[dtype] >= size if op == "prod" else _modulus(dtype, size) > (size if op == "avg" else 1)
    return "" if fits else f"{dtype} cannot hold an exact {op} of {size} ranks"


class Oracle:
    """The input of one rank in operation i, and what the result must be on every rank."""

    def __init__(
        self, rank: int, size: int, elements: int, seed: int, dtype: str = "float32", op: str = "sum"
    ) -> None:
        if problem := refusal(dtype, op, size):
            raise ValueError(problem)
        self._elements = elements
        kind = numpy_dtype(dtype)
        modulus = _modulus(dtype, size)
        length = elements + SHIFTS
        contributions = (_pattern(other, length, seed, modulus, op, size) for other in range(size))
        # Whole periods in float64, where all of this is exact; only then the length of the array.
        total = next(contributions)
        for contribution in contributions:
            total = _combined(total, contribution, op)
        if op == "avg":
            total = total / size
        self._input = np.resize(_pattern(rank, length, seed, modulus, op, size).astype(kind), length)
        self._result = np.resize(total.astype(kind), length)

    def fill(self, array: Array, operation: int) -> None:
        np.copyto(array, self._part(self._input, operation))

    def first(self, operation: int) -> float:
        """What element 0 of the result must be."""
        return float(self._result[operation % SHIFTS])

    def wrong(self, array: Array, operation: int) -> Wrong | None:
        """None when every element is right; otherwise how many are not, and the first of them."""
        expected = self._part(self._result, operation)
        if np.array_equal(array, expected):
            return None
        bad = np.flatnonzero(array != expected)
        first = int(bad[0])
        text = (
            f"operation {operation}: {bad.size} of {array.size} elements are wrong, the first is {first}: "
            f"{array[first]} instead of {expected[first]}"
        )
        return Wrong(int(bad.size), text)

    def _part(self, long: Array, operation: int) -> Array:
        shift = operation % SHIFTS
        return long[shift : shift + self._elements]


def _pattern(rank: int, length: int, seed: int, modulus: int, op: str, size: int) -> Array:
    """One period: (j * (2 r + 3) + seed) mod m; for a mean multiples of n, for a product ones and twos."""
    numbers = (np.arange(modulus) * (2 * rank + 3) + seed) % modulus
    if op == "prod":
        numbers = 1 + numbers % 2
    if op == "avg":
        numbers = numbers - numbers % size
    return numbers[: min(length, modulus)].astype(np.float64)


def _combined(one: Array, other: Array, op: str) -> Array:
    if op in ("sum", "avg"):
        return one + other
    if op == "prod":
        return one * other
    return np.minimum(one, other) if op == "min" else np.maximum(one, other)


def _modulus(dtype: str, size: int) -> int:
    """The largest prime period up to 251 whose sums over all ranks are exact.

    It divides no sum of steps 2 r + 3 over the ranks, n (n + 2): otherwise a shifted sum were the same.
    """
    limit = min(PATTERN_MAX, EXACT[dtype] // size)
    for modulus in range(limit, 1, -1):
        prime = all(modulus % divisor for divisor in range(2, int(modulus**0.5) + 1))
        if prime and size * (size + 2) % modulus:
            return modulus
    return 1
