"""The numbers Python and the native engine share: element types, reductions, collectives.

The values travel in announcements between ranks, so they are fixed: append, never renumber.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

_Named = TypeVar("_Named", bound=IntEnum)


class DType(IntEnum):
    """Type of one element of a bucket."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def floating(self) -> bool:
        """Whether sums of this type are rounded, so that their order matters."""
        return self in _FLOATING

    @property
    def half(self) -> bool:
        """Whether this is a 16-bit float: added in float32 and rounded once, never hop by hop."""
        return self in (DType.FLOAT16, DType.BFLOAT16)

    @classmethod
    def parse(cls, name: str) -> DType:
        """The type called `name`, for example ``float32``; ValueError names the known ones."""
        return _parse(cls, name)


class ReduceOp(IntEnum):
    """How contributions are combined."""

    SUM = 0
    AVG = 1
    MIN = 2
    MAX = 3
    PROD = 4

    @classmethod
    def parse(cls, name: str) -> ReduceOp:
        """The reduction called `name`, for example ``sum``; ValueError names the known ones."""
        return _parse(cls, name)


class Collective(IntEnum):
    """What an operation does with the contributions of all ranks."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2

    @classmethod
    def parse(cls, name: str) -> Collective:
        """The collective called `name`, for example ``all_reduce``; ValueError names the known ones."""
        return _parse(cls, name)


_ITEMSIZE = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.UINT8: 1,
}
_FLOATING = frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16})


def _parse(kind: type[_Named], name: str) -> _Named:
    for member in kind:
        if member.name.lower() == name:
            return member
    known = ", ".join(member.name.lower() for member in kind)
    raise ValueError(f"{name!r} is no {kind.__name__}; known: {known}")
