"""Every family, executed step by step in random orders, gives what numpy gives."""

from __future__ import annotations

import numpy as np
import pytest

from schedule.executor import SUM, Broken, execute
from schedule.plans import KIND_NAMES, KINDS, contributions, edit, expected, find, plan, verdict
from tailcut.schedule import Combine
from tailcut.types import Collective


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_sums_are_exact(family: str, collective: Collective, size: int) -> None:
    for count in sorted({0, 1, size - 1, size, size + 1, 3 * size + 2}):
        parts = plan(family, collective, size, count, itemsize=8)
        for seed in range(4):
            inputs = contributions(parts, 8, seed)
            results = execute(parts, inputs, itemsize=8, seed=seed)
            arrays = [np.array(given, dtype=np.int64) for given in inputs]
            if collective is Collective.ALL_GATHER:
                wanted = [np.concatenate(arrays)] * size
            elif collective is Collective.REDUCE_SCATTER:
                wanted = np.array_split(np.sum(arrays, axis=0), size)
            else:
                wanted = [np.sum(arrays, axis=0)] * size
            for rank in range(size):
                assert np.array_equal(np.array(results[rank], dtype=np.int64), wanted[rank]), (
                    count,
                    seed,
                    rank,
                )


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_order_memory_and_retention_hold(family: str, collective: Collective, size: int) -> None:
    """With an arithmetic that shows every order, in one memory and in two, with memory lost at the end."""
    for count in (1, size, 2 * size + 1):
        parts = plan(family, collective, size, count)
        found = verdict(parts, itemsize=4, seeds=range(6), rank_ordered=family != "ring")
        assert found is None, (count, found)


@pytest.mark.parametrize("family", ["ring", "transpose"])
def test_every_rotation(family: str) -> None:
    for size in (2, 3, 5):
        for rotation in range(-1, size + 1):
            parts = plan(family, Collective.ALL_REDUCE, size, 2 * size + 1, rotation=rotation)
            found = verdict(parts, itemsize=4, seeds=range(3), rank_ordered=family != "ring")
            assert found is None, (size, rotation, found)


def test_the_executor_is_no_yes_man() -> None:
    parts = plan("transpose", Collective.ALL_REDUCE, 3, 6)
    index = find(parts, 1, Combine)
    combine = parts[1].steps[index]
    assert isinstance(combine, Combine)
    swapped = edit(parts, 1, index, inputs=combine.inputs[::-1])
    assert "rank order" in str(verdict(swapped, itemsize=4, seeds=range(2), rank_ordered=True))
    assert verdict(swapped, itemsize=4, seeds=range(2), rank_ordered=False) is None
    stuck = edit(parts, 1, index, after=(*combine.after, index))
    with pytest.raises(Broken, match="deadlock"):
        execute(stuck, contributions(parts, 4, 0), itemsize=4, seed=0)
    inputs = contributions(parts, 4, 0)
    assert execute(parts, inputs, itemsize=4, seed=0) == expected(parts, inputs, SUM)
