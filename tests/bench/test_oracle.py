"""What the ranks compare results with: exact in every dtype, different from one operation to the next."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.bench.oracle import EXACT, OPS, SHIFTS, Oracle, numpy_dtype, refusal

KINDS = [(dtype, op) for dtype in EXACT for op in OPS if not refusal(dtype, op, 3)]


def reduced(arrays: list[np.ndarray], op: str) -> np.ndarray:
    """In the dtype itself, one rank after the other: exactness is what is tested."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = {
            "sum": np.add,
            "avg": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "prod": np.multiply,
        }[op](total, array)
    return (total / np.asarray(len(arrays), total.dtype)).astype(total.dtype) if op == "avg" else total


@pytest.mark.parametrize(("dtype", "op"), KINDS)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_reduction_in_any_order_is_right_and_an_older_one_is_not(dtype: str, op: str, size: int) -> None:
    oracles = [Oracle(rank, size, 700, 5, dtype, op) for rank in range(size)]
    results = []
    for operation in range(3):
        inputs = [np.empty(700, numpy_dtype(dtype)) for _ in range(size)]
        for oracle, array in zip(oracles, inputs, strict=True):
            oracle.fill(array, operation)
        forth, back = reduced(inputs, op), reduced(inputs[::-1], op)
        results.append(forth)
        assert all(oracle.wrong(forth, operation) is None for oracle in oracles)
        assert all(oracle.wrong(back, operation) is None for oracle in oracles)
        assert oracles[0].first(operation) == float(forth[0])
    for operation in (1, 2):
        stale = oracles[0].wrong(results[operation - 1], operation)
        assert stale is not None
        assert stale.elements > 100


def test_one_wrong_element_is_counted_and_named() -> None:
    oracle = Oracle(0, 1, 10, 0)
    array = np.empty(10, np.float32)
    oracle.fill(array, SHIFTS + 2)
    right = array[7]
    array[7] += 1
    wrong = oracle.wrong(array, SHIFTS + 2)
    assert wrong is not None
    assert wrong.elements == 1
    assert wrong.text.endswith(f"1 of 10 elements are wrong, the first is 7: {right + 1} instead of {right}")


def test_what_no_dtype_can_hold_is_refused() -> None:
    assert "no such dtype: int4" in refusal("int4", "sum", 2)
    assert "no such reduction: xor" in refusal("float32", "xor", 2)
    assert refusal("uint8", "prod", 7) == ""
    assert "uint8 cannot hold an exact prod of 8 ranks" in refusal("uint8", "prod", 8)
    assert "mean of int32" in refusal("int32", "avg", 2)
    with pytest.raises(ValueError, match="cannot hold"):
        Oracle(0, 200, 10, 0, "uint8")
