"""Small messages: everybody sends everything to everybody, and every rank adds it up for itself.

One stage and one message delay, for n-1 times the bytes. All ranks add in rank order, so they agree to the
last bit. What is sent is a copy in STAGE: the result may go where the contribution was, and no peer can
prove to this rank that it has the contribution before the operation ends.
"""

from __future__ import annotations

from tailcut.schedule.plan import Buffer, Combine, Part, Recv, Region, Send, Step, slot_bytes, validate
from tailcut.types import Collective

FAMILY = "small"


def build(
    *, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
) -> Part:
    """The Part of `rank`. There are no shards, so `rotation` changes nothing."""
    validate(
        FAMILY,
        (Collective.ALL_REDUCE,),
        collective=collective,
        size=size,
        rank=rank,
        count=count,
        itemsize=itemsize,
    )
    total = count * itemsize
    slot = slot_bytes(total, itemsize)
    mine, result = Region(Buffer.INPUT, 0, total), Region(Buffer.OUTPUT, 0, total)
    steps: list[Step] = []
    stage_bytes = 0
    if total and size == 1:
        steps.append(Combine(result, (mine,), (), 0, True))
    elif total:
        slots = tuple(Region(Buffer.STAGE, peer * slot, total) for peer in range(size))
        steps.append(Combine(slots[rank], (mine,), (), 0, False))
        produced = [0]
        for turn in range(size - 1):
            to, source = (rank - 1 - turn) % size, (rank + 1 + turn) % size
            steps.append(Send(to, 0, slots[rank], (0,), 0, turn, True))
            steps.append(Recv(source, 0, slots[source], 0, turn))
            produced.append(len(steps) - 1)
        steps.append(Combine(result, slots, tuple(produced), 0, True))
        stage_bytes = size * slot
    return Part(FAMILY, collective, size, rank, total, total, stage_bytes, 1, tuple(steps))
