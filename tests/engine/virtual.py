"""Real engines over the virtual network: starting operations, letting time pass, collecting results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from group.reference import DTYPES, Array, contribution, reduced, shard
from tailcut import _native
from tailcut.schedule import FAMILIES, family_number
from tailcut.schedule.plan import native_steps, shards_by_owner
from tailcut.types import Collective, DType, ReduceOp

US = 1_000  # nanoseconds
MS = 1_000_000
SECOND = 1_000_000_000
NO_TIMEOUT = 10**6 * SECOND
KINDS = (
    ("ring", Collective.ALL_REDUCE),
    ("small", Collective.ALL_REDUCE),
    ("transpose", Collective.ALL_REDUCE),
    ("transpose", Collective.REDUCE_SCATTER),
    ("transpose", Collective.ALL_GATHER),
)
KIND_NAMES = [f"{family}-{collective.name.lower()}" for family, collective in KINDS]


@dataclass(frozen=True)
class Op:
    """One operation as all ranks call it."""

    count: int
    family: str = "transpose"
    collective: Collective = Collective.ALL_REDUCE
    dtype: str = "float32"
    op: str = "sum"
    rotation: int = 0
    tag: int = 0
    in_place: bool = True
    salt: int = 0

    def part(self, size: int, rank: int) -> _native.Part:
        return _part(self.family, self.collective, size, rank, self.count, self.itemsize, self.rotation)

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @lru_cache(maxsize=64)  # noqa: B019  (an Op is a value; the cache is bounded)
    def inputs(self, size: int) -> list[Array]:
        """What the ranks contribute; not to be written to."""
        whole = [contribution(self.dtype, self.count, rank, self.salt) for rank in range(size)]
        if self.collective is not Collective.ALL_GATHER:
            return whole
        return [whole[rank][shard(self.count, size, rank)] for rank in range(size)]

    @lru_cache(maxsize=64)  # noqa: B019
    def expected(self, size: int) -> list[Array]:
        """What numpy gets, in the order of ranks (ring: in the order of the ring, which its Plan fixes)."""
        inputs = self.inputs(size)
        if self.collective is Collective.ALL_GATHER:
            return [np.concatenate(inputs)] * size
        with np.errstate(over="ignore"):
            return self._reduced(inputs)

    def _reduced(self, inputs: list[Array]) -> list[Array]:
        size = len(inputs)
        if self.family == "ring":
            return [self._around_the_ring(inputs)] * size
        total = reduced(self.op, inputs)
        if self.collective is Collective.REDUCE_SCATTER:
            return [total[shard(self.count, size, rank)] for rank in range(size)]
        return [total] * size

    def _around_the_ring(self, inputs: Sequence[Array]) -> Array:
        size, out = len(inputs), np.empty_like(inputs[0])
        for first, region in enumerate(shards_by_owner(self.count, size, self.itemsize, self.rotation)):
            start = region.offset // self.itemsize
            piece = slice(start, start + region.length // self.itemsize)
            out[piece] = reduced(self.op, [inputs[(first + hop) % size][piece] for hop in range(size)])
        return out

    def packets(self, size: int, payload: int) -> int:
        """Data packets that all ranks together send when nothing is lost."""
        total = 0
        for rank in range(size):
            rows = _rows(self.family, self.collective, size, rank, self.count, self.itemsize, self.rotation)
            for row in rows[1:]:
                total += -(-int(row[6]) // payload) if row[0] == 0 else 0
        return total


@lru_cache(maxsize=4096)
def _rows(
    family: str, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int
) -> list[tuple[Any, ...]]:
    built = FAMILIES[family](
        collective=collective, size=size, rank=rank, count=count, itemsize=itemsize, rotation=rotation
    )
    return [(built.input_bytes, built.output_bytes, built.stage_bytes), *native_steps(built)]


@lru_cache(maxsize=1024)
def _part(
    family: str, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int
) -> _native.Part:
    (given, result, stage), *rows = _rows(family, collective, size, rank, count, itemsize, rotation)
    return _native.Part(size, rank, given, result, stage, itemsize, rows)


@dataclass
class Started:
    """One rank's side of an operation that was started."""

    rank: int
    op: Op
    sequence: int
    input: Array
    output: Array
    ticket: int = 0
    at_ns: int = 0
    result: dict[str, Any] | None = None

    @property
    def code(self) -> str:
        return "running" if self.result is None else str(self.result["code"])

    def fill(self, byte: int) -> None:
        """What a caller may do to its memory once it has the result."""
        for array in (self.input, self.output):
            array.view(np.uint8)[...] = byte

    def holds(self, byte: int) -> bool:
        return all(bool((array.view(np.uint8) == byte).all()) for array in (self.input, self.output))


@dataclass
class Virtual:
    """n engines. `start` begins an operation on one rank, `run` lets time pass and files the results."""

    size: int
    payload: int = 1448
    seed: int = 0
    options: Mapping[str, int] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = {"receive_bytes": 4 << 20, **self.options}
        self.net = _native.Network(self.size, self.payload, options, {"seed": self.seed, **self.network})
        self.started: list[list[Started]] = [[] for _ in range(self.size)]
        self._by_ticket: dict[tuple[int, int], Started] = {}
        self._sequences: dict[tuple[int, int], int] = {}

    @property
    def ranks(self) -> range:
        return range(self.size)

    @property
    def now_ns(self) -> int:
        return self.net.now_ns

    def start(self, rank: int, op: Op, *, timeout_ns: int = NO_TIMEOUT, **forged: int) -> Started:
        """`forged`: fields of the announcement (dtype, op, count, ...) that shall differ from the truth."""
        mine = op.inputs(self.size)[rank].copy()
        output = np.zeros_like(op.expected(self.size)[rank])
        reuse = op.in_place and op.collective is Collective.ALL_REDUCE
        return self.start_with(rank, op, mine, mine if reuse else output, timeout_ns=timeout_ns, **forged)

    def start_with(
        self,
        rank: int,
        op: Op,
        given: Array,
        output: Array,
        *,
        timeout_ns: int = NO_TIMEOUT,
        **forged: int,
    ) -> Started:
        sequence = self._sequences.get((rank, op.tag), 0)
        self._sequences[rank, op.tag] = sequence + 1
        told = {
            "collective": int(op.collective),
            "dtype": int(DType.parse(op.dtype)),
            "op": int(ReduceOp.parse(op.op)),
            "count": op.count,
            "family": family_number(op.family),
        } | forged
        one = Started(rank, op, sequence, given, output, at_ns=self.now_ns)
        one.ticket = self.net.start(
            rank,
            op.part(self.size, rank),
            op.tag,
            sequence,
            **told,
            input=given.view(np.uint8),
            output=output.view(np.uint8),
            timeout_ns=timeout_ns,
        )
        self.started[rank].append(one)
        self._by_ticket[rank, one.ticket] = one
        return one

    def start_all(self, op: Op, *, timeout_ns: int = NO_TIMEOUT) -> list[Started]:
        return [self.start(rank, op, timeout_ns=timeout_ns) for rank in self.ranks]

    def poll(self) -> list[Started]:
        """The operations that ended since the last look."""
        ended = []
        for rank in self.ranks:
            for result in self.net.results(rank):
                one = self._by_ticket[rank, result["ticket"]]
                assert one.result is None, f"rank {rank}: two results for one operation"
                one.result = result
                ended.append(one)
        return ended

    def run(self, duration_ns: int) -> list[Started]:
        self.net.run(self.now_ns + duration_ns)
        return self.poll()

    def pending(self, ranks: Sequence[int] | None = None) -> list[Started]:
        return [one for rank in ranks or self.ranks for one in self.started[rank] if one.result is None]

    def finish(self, limit_ns: int, ranks: Sequence[int] | None = None) -> list[Started]:
        """Runs until every operation of these ranks has ended, or time is up; what ended meanwhile."""
        end, step, ended = self.now_ns + limit_ns, 100 * US, self.poll()
        while self.pending(ranks) and self.now_ns < end:
            ended += self.run(min(step, end - self.now_ns))
            step = min(step * 5 // 4, 50 * MS)
        return ended

    def settle(self, limit_ns: int, ranks: Sequence[int] | None = None) -> bool:
        """Runs until no engine keeps anything for its peers; False: time was up first."""
        end, step = self.now_ns + limit_ns, MS
        while not all(self.net.idle(rank) for rank in ranks or self.ranks) and self.now_ns < end:
            self.run(step)
            step = min(step * 5 // 4, 50 * MS)
        return all(self.net.idle(rank) for rank in ranks or self.ranks)

    def total(self, name: str) -> int:
        return sum(self.net.counters(rank)[name] for rank in self.ranks)


def codes(started: Sequence[Started]) -> list[str]:
    return [one.code for one in started]


def result_of(one: Started) -> dict[str, Any]:
    assert one.result is not None, f"rank {one.rank} has no result for {one.op}"
    return one.result
