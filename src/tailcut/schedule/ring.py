"""Ring: reduce-scatter and all-gather around a ring, 2(n-1) rounds, each rank talks to two neighbours.

The sum of a shard starts at one rank and takes up one contribution per hop, so its order is the order of
the ring, not that of the ranks (the same for everybody, since each shard is finished in one place). A
partial sum is rounded at every hop: 16-bit floats must not take this family.
"""

from __future__ import annotations

from tailcut.schedule.plan import (
    Buffer,
    Combine,
    Part,
    Recv,
    Region,
    Send,
    Step,
    shards_by_owner,
    slot_bytes,
    validate,
)
from tailcut.types import Collective

FAMILY = "ring"


def build(
    *, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
) -> Part:
    """The Part of `rank`. The chain of shard r + rotation (mod n) starts at rank r and is finished at r-1."""
    validate(
        FAMILY,
        (Collective.ALL_REDUCE,),
        collective=collective,
        size=size,
        rank=rank,
        count=count,
        itemsize=itemsize,
    )
    shards = shards_by_owner(count, size, itemsize, rotation)
    steps: list[Step] = []
    finished, stage_bytes = _reduce(steps, rank, shards, itemsize)
    _gather(steps, rank, shards, finished)
    total = count * itemsize
    return Part(FAMILY, collective, size, rank, total, total, stage_bytes, 2, tuple(steps))


def _reduce(steps: list[Step], rank: int, shards: list[Region], itemsize: int) -> tuple[tuple[int, ...], int]:
    """Rounds 0..n-2: take a partial sum from the left, add the own contribution, send it on to the right.

    Returns the step that finishes a shard here (if it is not empty) and the bytes of STAGE used. No Send is
    retained: its shard comes back finished, which it cannot before the right neighbour has had this Send.
    """
    size = len(shards)
    source, used = shards[rank].within(Buffer.INPUT), 0
    ready: tuple[int, ...] = ()
    if size == 1 and source.length:
        steps.append(Combine(shards[rank], (source,), (), 0, True))
    for turn in range(size - 1):
        if source.length:
            steps.append(Send((rank + 1) % size, turn, source, ready, 0, turn, False))
        shard = shards[(rank - turn - 1) % size]
        slot = Region(Buffer.STAGE, used, shard.length)
        last = turn == size - 2
        source, ready = (shard if last else slot), ()
        if shard.length:
            used += slot_bytes(shard.length, itemsize)
            steps.append(Recv((rank - 1) % size, turn, slot, 0, turn))
            received = len(steps) - 1
            steps.append(Combine(source, (slot, shard.within(Buffer.INPUT)), (received,), 0, last))
            ready = (len(steps) - 1,)
    return ready, used


def _gather(steps: list[Step], rank: int, shards: list[Region], finished: tuple[int, ...]) -> None:
    """Rounds n-1..2n-3: send finished shards on to the right, first the one finished here."""
    size, ready = len(shards), finished
    for turn in range(size - 1, 2 * size - 2):
        source, target = shards[(rank - turn) % size], shards[(rank - turn - 1) % size]
        if source.length:
            steps.append(Send((rank + 1) % size, turn, source, ready, 1, turn, True))
        ready = ()
        if target.length:
            steps.append(Recv((rank - 1) % size, turn, target, 1, turn))
            ready = (len(steps) - 1,)
