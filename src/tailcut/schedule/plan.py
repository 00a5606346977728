"""The Plan as a value: what every rank sends, receives and combines in one operation.

A Plan is one `Part` per rank. A Part lists steps; the engine executes them by data flow, block by block
(a block is a fixed number of packets): block b of a step may run when block b of every step in its
`after` has been done. Nothing here moves a byte. `check.check` decides whether a Plan is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import lcm
from typing import Protocol, TypeAlias

from tailcut.types import Collective

# Transfer numbers of an ordered pair of ranks travel as u16; 65535 is reserved.
MAX_TRANSFERS = 65535
# Bytes of one transfer: its packets are numbered with 24 bits and hold at least 1024 bytes each.
MAX_LENGTH = 2**24 * 1024
CACHE_LINE = 64  # bytes

# Families whose results are one flat Combine of the raw contributions of ranks 0..n-1 in that order.
RANK_ORDERED = frozenset({"transpose", "small"})


class PlanError(ValueError):
    """A Plan, or a request for one, that is not right; the text names rank, step and what is wrong."""


class Buffer(IntEnum):
    """Which memory a region lies in."""

    INPUT = 0  # what the caller contributes; never written
    OUTPUT = 1  # where the caller wants the result; for all_reduce it may be the same memory as INPUT
    STAGE = 2  # scratch of the engine, `Part.stage_bytes` long


@dataclass(frozen=True, slots=True)
class Region:
    """A byte range of a buffer."""

    buffer: Buffer
    offset: int
    length: int

    def within(self, buffer: Buffer) -> Region:
        """The same range of another buffer."""
        return Region(buffer, self.offset, self.length)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{self.offset}:{self.offset + self.length})"


@dataclass(frozen=True, slots=True)
class Send:
    """Transfers `source` to `peer`, where the Recv with the same `transfer` number takes it."""

    peer: int
    transfer: int  # unique per ordered pair of ranks
    source: Region
    after: tuple[int, ...]  # steps of this Part (Recv or Combine) of the same length
    stage: int
    round: int  # the one-port round this transfer is meant for
    retain: bool  # false only if causality proves that the peer has the data before this rank completes

    def __str__(self) -> str:
        return f"Send {self.source} to rank {self.peer} as transfer {self.transfer}"


@dataclass(frozen=True, slots=True)
class Recv:
    """Takes a transfer of `peer` into `target`."""

    peer: int
    transfer: int
    target: Region
    stage: int
    round: int

    def __str__(self) -> str:
        return f"Recv {self.target} from rank {self.peer} as transfer {self.transfer}"


@dataclass(frozen=True, slots=True)
class Combine:
    """target = inputs[0] op inputs[1] op ... in this order; one input is a copy; in place is allowed."""

    target: Region
    inputs: tuple[Region, ...]
    after: tuple[int, ...]
    stage: int
    final: bool  # the complete reduction over all ranks: AVG divides and 16-bit floats are rounded here

    def __str__(self) -> str:
        return f"Combine {len(self.inputs)} inputs into {self.target}"


Step: TypeAlias = Send | Recv | Combine


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part of a Plan. The order of its Sends is the order in which they use the port."""

    family: str
    collective: Collective
    size: int
    rank: int
    input_bytes: int
    output_bytes: int
    stage_bytes: int
    stages: int
    steps: tuple[Step, ...]


class Build(Protocol):
    """What a schedule family offers: one rank's Part, made without looking at the others."""

    def __call__(
        self, *, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
    ) -> Part: ...


def whole(
    build: Build, *, collective: Collective, size: int, count: int, itemsize: int, rotation: int = 0
) -> tuple[Part, ...]:
    """All Parts of a Plan, for the checker, tests and the simulator; a rank alone needs only its own."""
    return tuple(
        build(collective=collective, size=size, rank=rank, count=count, itemsize=itemsize, rotation=rotation)
        for rank in range(size)
    )


def shard(count: int, size: int, index: int) -> tuple[int, int]:
    """(first element, number of elements) of shard `index`: the first `count % size` shards get one more."""
    base, extra = divmod(count, size)
    return index * base + min(index, extra), base + (index < extra)


def shards_by_owner(count: int, size: int, itemsize: int, rotation: int = 0) -> list[Region]:
    """Entry r is the region of OUTPUT that rank r owns: shard r + rotation (mod n)."""
    regions = []
    for rank in range(size):
        first, length = shard(count, size, (rank + rotation) % size)
        regions.append(Region(Buffer.OUTPUT, first * itemsize, length * itemsize))
    return regions


def slot_bytes(length: int, itemsize: int) -> int:
    """Distance in STAGE between slots for `length` bytes each.

    Slots start at cache lines. The number of lines is odd, so that slots of a power-of-two length, which a
    Combine reads side by side, do not all fall into the same few cache sets.
    """
    line = lcm(CACHE_LINE, itemsize)
    return line * (-(-length // line) | 1)


def validate(
    family: str,
    supported: Sequence[Collective],
    *,
    collective: Collective,
    size: int,
    rank: int,
    count: int,
    itemsize: int,
) -> None:
    """Refuses a request no builder can serve, with a text that says why."""
    if collective not in supported:
        raise PlanError(f"{family} has no {collective.name.lower()}")
    if size < 1 or not 0 <= rank < size:
        raise PlanError(f"{family}: there is no rank {rank} among {size} ranks")
    if count < 0 or itemsize < 1:
        raise PlanError(f"{family}: cannot split {count} elements of {itemsize} bytes")


def native_steps(part: Part) -> list[tuple[object, ...]]:
    """The steps as plain tuples, in the form `tailcut._native.Part` takes them."""
    rows: list[tuple[object, ...]] = []
    for step in part.steps:
        region = step.source if isinstance(step, Send) else step.target
        where = (int(region.buffer), region.offset, region.length)
        if isinstance(step, Send):
            rows.append((0, step.peer, step.transfer, step.stage, *where, step.retain, step.after))
        elif isinstance(step, Recv):
            rows.append((1, step.peer, step.transfer, step.stage, *where))
        else:
            inputs = tuple((int(each.buffer), each.offset) for each in step.inputs)
            rows.append((2, step.stage, step.final, *where, inputs, step.after))
    return rows
