"""Transpose AllReduce (TAR): every rank sends its pieces straight to their owners, owners send results back.

Stage 0: rank i sends its piece of every shard to the owner of that shard; the owner adds all contributions
in rank order, its own at its place. Stage 1: the owner sends the reduced shard to every peer. In round t
of a stage rank i sends to i-1-t and receives from i+1+t (mod n): nobody has two senders in a round. The two
stages alone are reduce_scatter and all_gather.
"""

from __future__ import annotations

from tailcut.schedule.plan import (
    Buffer,
    Combine,
    Part,
    PlanError,
    Recv,
    Region,
    Send,
    Step,
    shards_by_owner,
    slot_bytes,
    validate,
)
from tailcut.types import Collective

FAMILY = "transpose"


def build(
    *, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
) -> Part:
    """The Part of `rank`, which owns shard rank + rotation (mod n). Only all_reduce may rotate."""
    validate(
        FAMILY,
        tuple(Collective),
        collective=collective,
        size=size,
        rank=rank,
        count=count,
        itemsize=itemsize,
    )
    if rotation % size and collective is not Collective.ALL_REDUCE:
        raise PlanError(f"{FAMILY}: {collective.name.lower()} fixes which rank has which shard; no rotation")
    shards = shards_by_owner(count, size, itemsize, rotation)
    own, total = shards[rank], count * itemsize
    alone = Region(Buffer.INPUT, 0, own.length)  # the own shard, where it is all that INPUT or OUTPUT holds
    steps: list[Step] = []
    input_bytes, output_bytes, stage_bytes, stages = total, total, 0, 1
    if collective is Collective.ALL_REDUCE:
        stage_bytes, stages = _collect(steps, rank, shards, own, itemsize, retain=False), 2
        _spread(steps, rank, shards, own, (len(steps) - 1,), stage=1)
    elif collective is Collective.REDUCE_SCATTER:
        output_bytes = own.length
        stage_bytes = _collect(steps, rank, shards, alone.within(Buffer.OUTPUT), itemsize, retain=True)
    else:
        input_bytes = own.length
        _spread(steps, rank, shards, alone, (), stage=0)
        if own.length:
            steps.append(Combine(own, (alone,), (), 0, False))
    return Part(FAMILY, collective, size, rank, input_bytes, output_bytes, stage_bytes, stages, tuple(steps))


def _collect(
    steps: list[Step], rank: int, shards: list[Region], result: Region, itemsize: int, *, retain: bool
) -> int:
    """Stage 0: pieces to their owners, then the sum of the own shard into `result`; returns bytes of STAGE.

    In all_reduce nothing is retained: the owner's result comes back, and it needs this rank's piece. In
    reduce_scatter nothing comes back, so every piece is.
    """
    size, slot = len(shards), slot_bytes(result.length, itemsize)
    inputs = [shards[rank].within(Buffer.INPUT)] * size
    received = []
    for turn in range(size - 1):
        to, source = (rank - 1 - turn) % size, (rank + 1 + turn) % size
        piece = shards[to].within(Buffer.INPUT)
        if piece.length:
            steps.append(Send(to, 0, piece, (), 0, turn, retain))
        if result.length:
            inputs[source] = Region(Buffer.STAGE, turn * slot, result.length)
            steps.append(Recv(source, 0, inputs[source], 0, turn))
            received.append(len(steps) - 1)
    if not result.length:
        return 0
    steps.append(Combine(result, tuple(inputs), tuple(received), 0, True))
    return slot * (size - 1)


def _spread(
    steps: list[Step], rank: int, shards: list[Region], source: Region, ready: tuple[int, ...], *, stage: int
) -> None:
    """The last stage: the own shard to every peer, every other shard from its owner straight to OUTPUT."""
    size = len(shards)
    for turn in range(size - 1):
        to, owner = (rank - 1 - turn) % size, (rank + 1 + turn) % size
        around = stage * (size - 1) + turn
        if source.length:
            steps.append(Send(to, stage, source, ready, stage, around, True))
        if shards[owner].length:
            steps.append(Recv(owner, stage, shards[owner], stage, around))
