"""The numbers shared with the native engine and between ranks stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.types import Collective, DType, ReduceOp


def test_numbers_are_fixed() -> None:
    assert [(member.name, member.value) for member in DType] == [
        ("FLOAT32", 0),
        ("FLOAT64", 1),
        ("FLOAT16", 2),
        ("BFLOAT16", 3),
        ("INT32", 4),
        ("INT64", 5),
        ("UINT8", 6),
    ]
    assert [member.name for member in ReduceOp] == ["SUM", "AVG", "MIN", "MAX", "PROD"]
    assert [member.name for member in Collective] == ["ALL_REDUCE", "REDUCE_SCATTER", "ALL_GATHER"]
    for kind in (ReduceOp, Collective):
        assert [member.value for member in kind] == list(range(len(kind)))


def test_sizes_and_kinds_are_numpys() -> None:
    for dtype in DType:
        if dtype is not DType.BFLOAT16:  # numpy has none
            known = np.dtype(dtype.name.lower())
            assert dtype.itemsize == known.itemsize
            assert dtype.floating is (known.kind == "f")
            assert dtype.half is (known.kind == "f" and known.itemsize == 2)
    assert (DType.BFLOAT16.itemsize, DType.BFLOAT16.floating, DType.BFLOAT16.half) == (2, True, True)


@pytest.mark.parametrize("kind", [DType, ReduceOp, Collective])
def test_names_are_read_back(kind: type[DType] | type[ReduceOp] | type[Collective]) -> None:
    for member in kind:
        assert kind.parse(member.name.lower()) is member


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'mean' is no ReduceOp; known: sum, avg, min, max, prod"):
        ReduceOp.parse("mean")
    with pytest.raises(ValueError, match="'SUM' is no ReduceOp"):
        ReduceOp.parse("SUM")
