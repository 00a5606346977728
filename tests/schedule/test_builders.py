"""What the families promise: who talks to whom when, how many bytes, what is kept, what is left out."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import pytest

from schedule.plans import KIND_NAMES, KINDS, plan, sends_of
from tailcut.schedule import (
    FAMILIES,
    Buffer,
    Combine,
    Part,
    PlanError,
    Recv,
    Region,
    Send,
    check,
    family_number,
    native_steps,
)
from tailcut.schedule.plan import CACHE_LINE, shard, slot_bytes
from tailcut.types import Collective

ALL, SCATTER, GATHER = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER


def sent_bytes(part: Part) -> int:
    return sum(send.source.length for send in sends_of(part))


def test_shards_tile_the_vector_and_differ_by_one_at_most() -> None:
    for size in range(1, 9):
        for count in range(3 * size + 2):
            shards = [shard(count, size, index) for index in range(size)]
            assert shards[0][0] == 0
            assert [first + length for first, length in shards] == [first for first, _ in shards[1:]] + [
                count
            ]
            assert [length for _, length in shards] == sorted((length for _, length in shards), reverse=True)
            assert shards[0][1] - shards[-1][1] in (0, 1)


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_bytes_on_the_wire(size: int) -> None:
    """2(n-1)/n of the message for ring and transpose, half of it for the halves, n-1 times it for small."""
    count, total = 6 * size, 6 * size * 4
    for family, collective, sent in (
        ("ring", ALL, 2 * (size - 1) * total // size),
        ("transpose", ALL, 2 * (size - 1) * total // size),
        ("transpose", SCATTER, (size - 1) * total // size),
        ("transpose", GATHER, (size - 1) * total // size),
        ("small", ALL, (size - 1) * total),
    ):
        assert {sent_bytes(part) for part in plan(family, collective, size, count)} == {sent}


@pytest.mark.parametrize(
    ("family", "collective", "rounds", "stages"),
    [("ring", ALL, 10, 2), ("transpose", ALL, 10, 2), ("small", ALL, 5, 1), ("transpose", SCATTER, 5, 1)],
)
def test_rounds_and_stages(family: str, collective: Collective, rounds: int, stages: int) -> None:
    for part in plan(family, collective, 6, 60):
        assert [send.round for send in sends_of(part)] == list(range(rounds))
        assert part.stages == stages
        assert {step.stage for step in part.steps} == set(range(stages))


def test_transpose_rotates_its_peers() -> None:
    """Rank i sends to i-1, i-2, ... and receives from i+1, i+2, ... in both stages."""
    for part in plan("transpose", ALL, 5, 20):
        down = [(part.rank - 1 - turn) % 5 for turn in range(4)]
        up = [(part.rank + 1 + turn) % 5 for turn in range(4)]
        assert [send.peer for send in sends_of(part)] == down + down
        assert [step.peer for step in part.steps if isinstance(step, Recv)] == up + up


def test_rotation_moves_ownership() -> None:
    for rotation in range(-2, 7):
        for part in plan("transpose", ALL, 4, 8, rotation=rotation):
            owned = next(step.target for step in part.steps if isinstance(step, Combine))
            assert owned == Region(Buffer.OUTPUT, (part.rank + rotation) % 4 * 8, 8)


def test_contributions_stand_in_rank_order_with_the_own_at_its_place() -> None:
    for part in plan("transpose", ALL, 4, 8):
        combine = next(step for step in part.steps if isinstance(step, Combine))
        recvs = {step.target: step.peer for step in part.steps if isinstance(step, Recv)}
        assert [recvs.get(region, part.rank) for region in combine.inputs] == [0, 1, 2, 3]
        assert combine.inputs[part.rank].buffer is Buffer.INPUT


@pytest.mark.parametrize(
    ("family", "collective", "kept"),
    [("ring", ALL, {1}), ("transpose", ALL, {1}), ("transpose", SCATTER, {0}), ("transpose", GATHER, {0}),
     ("small", ALL, {0})],
)  # fmt: skip
def test_only_what_nothing_proves_is_kept(family: str, collective: Collective, kept: set[int]) -> None:
    """Stages whose Sends are retained; retaining no more than that is what the checker calls justified."""
    for part in plan(family, collective, 5, 11):
        for send in sends_of(part):
            assert send.retain is (send.stage in kept)


def test_empty_shards_are_left_out_on_both_sides() -> None:
    for family in ("ring", "transpose"):
        parts = plan(family, ALL, 5, 2)
        assert sum(len(sends_of(part)) for part in parts) == 2 * 4 * 2  # 2 shards, n-1 transfers, 2 stages
        lengths = {step.target.length for part in parts for step in part.steps if not isinstance(step, Send)}
        assert lengths == {4}


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
def test_nothing_to_do(family: str, collective: Collective) -> None:
    for part in plan(family, collective, 3, 0):
        assert part.steps == ()
        assert (part.input_bytes, part.output_bytes, part.stage_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
def test_alone(family: str, collective: Collective) -> None:
    """One rank copies, and where something is reduced the copy is the final result."""
    (part,) = plan(family, collective, 1, 3)
    whole = Region(Buffer.INPUT, 0, 12)
    assert part.steps == (Combine(whole.within(Buffer.OUTPUT), (whole,), (), 0, collective is not GATHER),)
    assert part.stage_bytes == 0


def test_slots_start_at_cache_lines_and_spread_over_cache_sets() -> None:
    for length in (1, 63, 64, 65, 4096, 2**20):
        for itemsize in (1, 2, 4, 8):
            stride = slot_bytes(length, itemsize)
            assert length <= stride <= length + 2 * CACHE_LINE
            assert stride % CACHE_LINE == 0
            assert stride // CACHE_LINE % 2 == 1


@pytest.mark.parametrize(
    ("family", "changes", "text"),
    [
        ("ring", {"collective": SCATTER}, "ring has no reduce_scatter"),
        ("small", {"collective": GATHER}, "small has no all_gather"),
        ("transpose", {"rank": 4}, "there is no rank 4 among 4 ranks"),
        ("ring", {"rank": -1}, "there is no rank -1 among 4 ranks"),
        ("small", {"size": 0, "rank": 0}, "there is no rank 0 among 0 ranks"),
        ("ring", {"count": -1}, "cannot split -1 elements of 4 bytes"),
        ("transpose", {"itemsize": 0}, "cannot split 8 elements of 0 bytes"),
        ("transpose", {"collective": GATHER, "rotation": 1}, "all_gather fixes which rank has which shard"),
    ],
)
def test_what_cannot_be_built_is_refused(family: str, changes: dict[str, int], text: str) -> None:
    asked = {"collective": ALL, "size": 4, "rank": 0, "count": 8, "itemsize": 4, **changes}
    with pytest.raises(PlanError, match=text):
        FAMILIES[family](**asked)  # type: ignore[arg-type]


def test_families_keep_their_numbers() -> None:
    """They are announced between ranks: a new family comes last."""
    assert [(family, family_number(family)) for family in FAMILIES] == [
        ("ring", 0),
        ("transpose", 1),
        ("small", 2),
    ]


def test_native_steps_are_plain_and_complete() -> None:
    part = plan("transpose", ALL, 2, 5)[1]
    assert part.stage_bytes == 64
    assert native_steps(part) == [
        (0, 0, 0, 0, 0, 0, 12, False, ()),
        (1, 0, 0, 0, 2, 0, 8),
        (2, 0, True, 1, 12, 8, ((2, 0), (0, 12)), (1,)),
        (0, 0, 1, 1, 1, 12, 8, True, (2,)),
        (1, 0, 1, 1, 1, 0, 12),
    ]
    for row in native_steps(part):
        assert all(type(value) in (int, bool, tuple) for value in row)


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
def test_a_rank_builds_alone_and_quickly(family: str, collective: Collective) -> None:
    """Wall clock: 2 to 15 ms for a rank of 1,000 here; the bound has slack for busy machines.

    The number of steps grows with n and not faster, which is what makes it so.
    """
    elapsed, parts = [], []
    for size in (500, 1000, 1000, 1000):
        start = perf_counter()
        parts.append(
            FAMILIES[family](collective=collective, size=size, rank=7, count=10**6, itemsize=4, rotation=0)
        )
        elapsed.append(perf_counter() - start)
    assert len(parts[1].steps) <= 2 * len(parts[0].steps) + 8
    assert min(elapsed[1:]) < 0.2


def test_steps_of_a_part_are_values() -> None:
    """Equal requests give equal Parts, so that a group can cache them; nobody can change one."""
    first, second = plan("ring", ALL, 3, 7), plan("ring", ALL, 3, 7)
    assert first == second
    assert len({hash(part) for part in (*first, *second)}) == 3
    assert all(one != two for one, two in pairwise(first))
    with pytest.raises(AttributeError):
        first[0].steps = ()  # type: ignore[misc]
    check(first, itemsize=4)
