"""Runs real engines over the virtual network and checks every value against numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tailcut import _native
from tailcut.schedule import ring, small, transpose
from tailcut.schedule.plan import Part, Recv, Send
from tailcut.types import Collective, DType, ReduceOp

MS = 1_000_000
SECOND = 1_000_000_000
FAMILIES = {"ring": ring, "transpose": transpose, "small": small}
FAMILY_CODES = {"ring": 1, "transpose": 2, "small": 3}


def native_part(part: Part, itemsize: int) -> _native.Part:
    """A Part in the form the engine executes."""
    steps: list[tuple[Any, ...]] = []
    for step in part.steps:
        if isinstance(step, Send):
            r = step.source
            steps.append((0, step.peer, step.transfer, step.stage, int(r.buffer), r.offset, r.length, step.retain, list(step.after)))
        elif isinstance(step, Recv):
            r = step.target
            steps.append((1, step.peer, step.transfer, step.stage, int(r.buffer), r.offset, r.length))
        else:
            r = step.target
            inputs = tuple((int(i.buffer), i.offset) for i in step.inputs)
            steps.append((2, step.stage, step.final, int(r.buffer), r.offset, r.length, inputs, list(step.after)))
    return _native.Part(part.size, part.rank, part.input_bytes, part.output_bytes, part.stage_bytes, itemsize, steps)


@lru_cache(maxsize=512)
def part(
    family: str, collective: Collective, size: int, rank: int, count: int, itemsize: int, rotation: int = 0
) -> _native.Part:
    built = FAMILIES[family].build(
        collective=collective, size=size, rank=rank, count=count, itemsize=itemsize, rotation=rotation
    )
    return native_part(built, itemsize)


@dataclass
class Virtual:
    """n engines; `all_reduce` starts one operation on every rank, `finish` runs and returns results by rank."""

    size: int
    payload: int = 1448
    options: dict[str, int] = field(default_factory=dict)
    network: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = {"receive_bytes": 4 << 20, **self.options}
        self.net = _native.Network(self.size, self.payload, options, self.network)
        self.sequences: dict[int, list[int]] = {}
        self.arrays: dict[tuple[int, int], np.ndarray[Any, Any]] = {}

    def start(
        self,
        rank: int,
        array: np.ndarray[Any, Any],
        *,
        family: str = "transpose",
        op: ReduceOp = ReduceOp.SUM,
        tag: int = 0,
        dtype: DType = DType.FLOAT32,
        timeout_s: float = 3600.0,
        rotation: int = 0,
        count: int | None = None,
    ) -> int:
        sequence = self.sequences.setdefault(tag, [0] * self.size)
        plan = part(family, Collective.ALL_REDUCE, self.size, rank, array.size, array.itemsize, rotation)
        number = sequence[rank]
        sequence[rank] += 1
        ticket = self.net.start(
            rank, plan, tag, number, int(Collective.ALL_REDUCE), int(dtype), int(op),
            array.size if count is None else count, FAMILY_CODES[family], array, array, int(timeout_s * SECOND),
        )  # fmt: skip
        self.arrays[(rank, ticket)] = array
        return ticket

    def run(self, seconds: float) -> None:
        self.net.run(self.net.now_ns + int(seconds * SECOND))

    def results(self) -> list[list[dict[str, Any]]]:
        return [self.net.results(rank) for rank in range(self.size)]

    def total(self, name: str) -> int:
        return sum(self.net.counters(rank)[name] for rank in range(self.size))


def vectors(size: int, count: int, seed: int, dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return [rng.standard_normal(count).astype(dtype) for _ in range(size)]
    return [rng.integers(0, 100, count).astype(dtype) for _ in range(size)]


def sum_in_rank_order(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total
