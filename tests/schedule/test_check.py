"""The checker accepts every family for n = 1..64, and takes causality block by block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedule.plans import KIND_NAMES, KINDS, Plan, edit, find, plan, verdict
from tailcut.schedule import Buffer, Combine, Part, PlanError, Recv, Region, Send, check, whole
from tailcut.types import Collective


def counts(size: int) -> set[int]:
    """Elements: none, fewer than ranks (empty shards), as many, not divisible; fewer of these for large n."""
    if size <= 16:
        return {0, 1, size - 1, size, size + 1, 3 * size + 2, 1000}
    if size <= 32:
        return {1, size - 1, 2 * size + 1}
    return {size - 1} if size % 2 else {2 * size + 1}


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("sizes", [range(1, 25), range(25, 41), range(41, 53), range(53, 65)], ids=str)
def test_families_are_right(family: str, collective: Collective, sizes: range) -> None:
    for size in sizes:
        for count in counts(size):
            check(plan(family, collective, size, count), itemsize=4)


@pytest.mark.parametrize("family", ["ring", "transpose", "small"])
def test_every_rotation_is_right(family: str) -> None:
    for size in range(2, 9):
        for rotation in range(-1, size + 1):
            for count in (size - 1, size, 3 * size + 2):
                parts = plan(family, Collective.ALL_REDUCE, size, count, itemsize=2, rotation=rotation)
                check(parts, itemsize=2)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_every_itemsize_and_large_counts(itemsize: int) -> None:
    """Above 2 and 4 GiB too: the checker reasons about ranges, not about bytes."""
    for family, collective in KINDS:
        for count in (7, 2**31 // itemsize + 3, 2**32 // itemsize + 5):
            check(plan(family, collective, 4, count, itemsize=itemsize), itemsize=itemsize)


def test_incast_is_what_the_caller_allows() -> None:
    """All senders of a stage at once: right with an incast of n-1, too many for one of n-2."""
    parts = tuple(
        replace(
            part,
            steps=tuple(
                step if isinstance(step, Combine) else replace(step, round=step.stage) for step in part.steps
            ),
        )
        for part in plan("transpose", Collective.ALL_REDUCE, 5, 11)
    )
    check(parts, itemsize=4, incast=4)
    with pytest.raises(PlanError, match=r"rank 0, step \d+ .*rank 0 (sends|receives) 4 transfers in round 0"):
        check(parts, itemsize=4, incast=3)


def test_rank_order_is_demanded_where_it_is_promised() -> None:
    ring = plan("ring", Collective.ALL_REDUCE, 3, 6)
    check(ring, itemsize=4)
    with pytest.raises(PlanError, match=r"not combined in rank order, but in the order \['0, 1', '2'\]"):
        check(ring, itemsize=4, rank_ordered=True)
    renamed = [replace(part, family="transpose") for part in ring]
    with pytest.raises(PlanError, match="rank order"):
        check(renamed, itemsize=4)


def test_a_superfluous_after_does_no_harm() -> None:
    parts = plan("ring", Collective.ALL_REDUCE, 2, 4)
    index, recv, combine = find(parts, 0, Send, round=1), find(parts, 0, Recv), find(parts, 0, Combine)
    check(edit(parts, 0, index, after=(combine, recv)), itemsize=4)


def test_what_nobody_writes_may_overlap() -> None:
    parts = plan("transpose", Collective.ALL_GATHER, 2, 6)
    part = Region(Buffer.INPUT, 4, 4)
    copy = Combine(Region(Buffer.STAGE, 0, 4), (part,), (), 0, False)
    first = replace(parts[0], stage_bytes=4, steps=(*parts[0].steps, copy))
    check((first, parts[1]), itemsize=4)


def test_a_part_of_what_is_written_cannot_be_read() -> None:
    """Its blocks are not those of the step that writes it, so nothing can order them."""
    parts = plan("transpose", Collective.ALL_GATHER, 2, 6)
    copy = Combine(Region(Buffer.STAGE, 0, 4), (Region(Buffer.OUTPUT, 16, 4),), (), 0, False)
    first = replace(parts[0], stage_bytes=4, steps=(*parts[0].steps, copy))
    with pytest.raises(
        PlanError, match=r"rank 0, step 1 .*writes OUTPUT\[12:24\), which overlaps .*\[16:20\)"
    ):
        check((first, parts[1]), itemsize=4)


def there_and_back(back: int) -> Plan:
    """all_gather of 8 bytes by 3 ranks, in which rank 0 passes rank 1's shard on through STAGE[0:8).

    Rank 2 answers with its own shard when it has that one, into STAGE[back:back+8) of rank 0. As whole
    transfers the answer comes after STAGE[0:8) was sent; block by block it answers what has been sent so far.
    """

    def region(buffer: Buffer, offset: int) -> Region:
        return Region(buffer, offset, 8)

    mine, stage = region(Buffer.INPUT, 0), region(Buffer.STAGE, 0)
    first, second, third = (region(Buffer.OUTPUT, offset) for offset in (0, 8, 16))
    answer = region(Buffer.STAGE, back)
    steps = (
        (
            Combine(first, (mine,), (), 0, False),
            Recv(1, 0, second, 0, 0),
            Combine(stage, (second,), (1,), 0, False),
            Send(2, 0, stage, (2,), 0, 1, False),
            Recv(2, 0, answer, 0, 2),
            Combine(third, (answer,), (4,), 0, False),
            Send(1, 0, first, (0,), 0, 3, True),
            Send(2, 1, first, (0,), 0, 4, True),
        ),
        (
            Send(0, 0, mine, (), 0, 0, True),
            Combine(second, (mine,), (), 0, False),
            Recv(0, 0, first, 0, 3),
            Recv(2, 1, third, 0, 5),
        ),
        (
            Recv(0, 0, second, 0, 1),
            Send(0, 0, mine, (0,), 0, 2, True),
            Combine(third, (mine,), (), 0, False),
            Recv(0, 1, first, 0, 4),
            Send(1, 1, mine, (), 0, 5, True),
        ),
    )
    return tuple(Part("hand", Collective.ALL_GATHER, 3, rank, 8, 24, 16, 1, steps[rank]) for rank in range(3))


@pytest.mark.parametrize("back", [0, 8])
def test_memory_may_be_used_again_once_causality_proves_it(back: int) -> None:
    parts = there_and_back(back)
    check(parts, itemsize=4)
    assert verdict(parts, itemsize=4, seeds=range(50), rank_ordered=False) is None


def test_causality_of_whole_transfers_is_not_enough() -> None:
    """Shifted by 4 bytes, the answer to the first block overwrites the second, which may not be sent yet."""
    parts = there_and_back(4)
    with pytest.raises(
        PlanError, match=r"rank 0, step 4 .*writes STAGE\[4:12\), which overlaps STAGE\[0:8\)"
    ):
        check(parts, itemsize=4)
    assert "wrong value" in str(verdict(parts, itemsize=4, seeds=range(200), rank_ordered=False))


def test_reuse_without_proof_is_found() -> None:
    """The same memory again, but rank 2 does not wait for what it is to make room for."""
    parts = there_and_back(0)
    parts = edit(parts, 2, 1, after=())
    with pytest.raises(PlanError, match=r"rank 0, step \d .*STAGE\[0:8\)"):
        check(parts, itemsize=4)
    assert verdict(parts, itemsize=4, seeds=range(200), rank_ordered=False) is not None


def test_whole_asks_every_rank() -> None:
    asked = []

    def build(
        *, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
    ) -> Part:
        asked.append((collective, size, rank, count, itemsize, rotation))
        return Part("none", collective, size, rank, 0, 0, 0, 1, ())

    check(whole(build, collective=Collective.ALL_GATHER, size=3, count=0, itemsize=2, rotation=1))
    assert asked == [(Collective.ALL_GATHER, 3, rank, 0, 2, 1) for rank in range(3)]
