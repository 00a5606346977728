"""StragglAR fits into the same Plan and is judged by the same checker, although no family makes it yet."""

from __future__ import annotations

import pytest

from schedule.plans import edit, find, sends_of, verdict
from schedule.straggler import FINISHED, straggler_plan
from tailcut.schedule import Combine, PlanError, Send, check


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("chunk_bytes", [4, 12, 4096])
def test_is_right(size: int, chunk_bytes: int) -> None:
    check(straggler_plan(size, chunk_bytes), itemsize=4)


@pytest.mark.parametrize("size", [3, 4])
def test_gives_the_sum(size: int) -> None:
    found = verdict(straggler_plan(size, 20), itemsize=4, seeds=range(30), rank_ordered=False)
    assert found is None


@pytest.mark.parametrize(("size", "rounds"), [(3, 3), (4, 4)])
def test_meets_the_bound_of_rounds_and_messages(size: int, rounds: int) -> None:
    """m-1+ceil(log2 n) rounds after the late rank has come, n messages a chunk: nothing redundant."""
    phase_2 = [send for part in straggler_plan(size, 4) for send in sends_of(part) if send.stage == 1]
    assert {send.round - (size - 2) for send in phase_2} == set(range(rounds))
    assert len(phase_2) == size * (size - 1)


def test_a_forgotten_partial_sum_is_found() -> None:
    parts = straggler_plan(4, 8)
    index = find(parts, 3, Combine)
    combine = parts[3].steps[index]
    assert isinstance(combine, Combine)
    broken = edit(parts, 3, index, inputs=combine.inputs[1:])
    with pytest.raises(PlanError, match=r"rank 3, step \d+ .*contribution of rank 0, 1, 2 is missing"):
        check(broken, itemsize=4)


def test_passing_on_before_it_came_is_found() -> None:
    parts = straggler_plan(4, 8)
    index = find(parts, 0, Send, transfer=FINISHED * 4 + 0)
    with pytest.raises(PlanError, match=r"rank 0, step"):
        check(edit(parts, 0, index, after=()), itemsize=4)


def test_no_finished_chunk_may_be_forgotten_too_early() -> None:
    """Who passes a finished chunk on learns nothing back, so it must keep it; what comes back it need not."""
    parts = straggler_plan(4, 8)
    for rank, part in enumerate(parts):
        for send in sends_of(part):
            assert send.retain is (send.transfer >= FINISHED * 4)
            index = part.steps.index(send)
            if send.retain:
                with pytest.raises(PlanError, match="retain is False"):
                    check(edit(parts, rank, index, retain=False), itemsize=4)
