"""A StragglAR by hand: the early ranks reduce-scatter, and when the late one has come the sum spreads.

The tables are the moves of phase 2 for n = 3 and 4, worked out on paper. Raw chunk 0 goes to its owner, which
finishes it; of every other chunk the late rank gets the partial sum of the early ranks and finishes it.
Finished chunks are passed on from rank to rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailcut.schedule import Buffer, Combine, Part, Recv, Region, Send, Step
from tailcut.types import Collective

RAW, PARTIAL, FINISHED = 0, 1, 2
Move = tuple[int, int, int, int, int]  # round of phase 2, from, to, what, chunk

OWNERS = {3: (0, 1), 4: (0, 2, 1)}  # of the chunks
MOVES: dict[int, tuple[Move, ...]] = {
    3: (
        (0, 2, 0, RAW, 0),
        (0, 1, 2, PARTIAL, 1),
        (1, 2, 1, FINISHED, 1),
        (1, 0, 2, FINISHED, 0),
        (2, 1, 0, FINISHED, 1),
        (2, 0, 1, FINISHED, 0),
    ),
    4: (
        (0, 3, 0, RAW, 0),
        (0, 2, 3, PARTIAL, 1),
        (1, 3, 1, FINISHED, 1),
        (1, 0, 2, FINISHED, 0),
        (1, 1, 3, PARTIAL, 2),
        (2, 3, 2, FINISHED, 2),
        (2, 0, 1, FINISHED, 0),
        (2, 1, 0, FINISHED, 1),
        (2, 2, 3, FINISHED, 0),
        (3, 3, 0, FINISHED, 2),
        (3, 1, 2, FINISHED, 1),
        (3, 2, 1, FINISHED, 2),
    ),
}


@dataclass
class _Rank:
    steps: list[Step] = field(default_factory=list)
    produced: dict[int, int] = field(default_factory=dict)  # chunk -> the step that last wrote it to OUTPUT
    staged: int = 0  # bytes of STAGE in use

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1


def straggler_plan(size: int, chunk_bytes: int) -> tuple[Part, ...]:
    ranks = [_Rank() for _ in range(size)]
    early, owners = range(size - 1), OWNERS[size]
    for chunk, owner in enumerate(owners):  # phase 1: direct reduce-scatter among the early ranks
        inputs = {owner: Region(Buffer.INPUT, chunk * chunk_bytes, chunk_bytes)}
        received = []
        for turn in range(size - 2):
            source = (owner + 1 + turn) % (size - 1)
            received.append(_move(ranks, (turn, source, owner, RAW, chunk), chunk_bytes, stage=0))
            recv = ranks[owner].steps[received[-1]]
            assert isinstance(recv, Recv)
            inputs[source] = recv.target
        total = Region(Buffer.OUTPUT, chunk * chunk_bytes, chunk_bytes)
        combine = Combine(total, tuple(inputs[rank] for rank in early), tuple(received), 0, False)
        ranks[owner].produced[chunk] = ranks[owner].add(combine)
    for turn, source, to, what, chunk in MOVES[size]:
        _move(ranks, (size - 2 + turn, source, to, what, chunk), chunk_bytes, stage=1)
    total_bytes = chunk_bytes * len(owners)
    for rank in ranks:  # the order of Sends is the order of the port; phase 1 was written chunk by chunk
        _sort_sends(rank)
    return tuple(
        Part("straggler", Collective.ALL_REDUCE, size, number, total_bytes, total_bytes, rank.staged, 2,
             tuple(rank.steps))
        for number, rank in enumerate(ranks)
    )  # fmt: skip


def _move(ranks: list[_Rank], move: Move, chunk_bytes: int, *, stage: int) -> int:
    """Adds Send, Recv and what follows of it; returns the step of the Recv."""
    around, source, to, what, chunk = move
    late = len(ranks) - 1
    result = Region(Buffer.OUTPUT, chunk * chunk_bytes, chunk_bytes)
    raw = result.within(Buffer.INPUT)
    transfer = what * len(ranks) + chunk
    after = () if what == RAW else (ranks[source].produced[chunk],)
    # What is finished comes back to everybody who gave to it: only finished chunks themselves are retained.
    ranks[source].add(
        Send(to, transfer, raw if what == RAW else result, after, stage, around, what == FINISHED)
    )
    if what == FINISHED:
        recv = ranks[to].add(Recv(source, transfer, result, stage, around))
        ranks[to].produced[chunk] = recv
        return recv
    slot = Region(Buffer.STAGE, ranks[to].staged, chunk_bytes)
    ranks[to].staged += chunk_bytes
    recv = ranks[to].add(Recv(source, transfer, slot, stage, around))
    if stage == 1:  # partial sum first, then the late rank's contribution: one order wherever it is done
        inputs = (slot, raw) if to == late else (result, slot)
        causes = (recv,) if to == late else (recv, ranks[to].produced[chunk])
        ranks[to].produced[chunk] = ranks[to].add(Combine(result, inputs, causes, stage, True))
    return recv


def _sort_sends(rank: _Rank) -> None:
    places = [index for index, step in enumerate(rank.steps) if isinstance(step, Send)]
    sends = [step for step in rank.steps if isinstance(step, Send)]
    for place, send in zip(places, sorted(sends, key=lambda step: step.round), strict=True):
        rank.steps[place] = send
