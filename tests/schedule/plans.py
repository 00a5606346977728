"""Plans for the tests: every family and collective, small edits, a judge, and a StragglAR written by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from schedule.executor import TRACE, Arithmetic, Broken, execute
from tailcut.schedule import FAMILIES, Build, Part, Send, Step, whole
from tailcut.types import Collective

Plan = tuple[Part, ...]

KINDS = [
    ("ring", Collective.ALL_REDUCE),
    ("transpose", Collective.ALL_REDUCE),
    ("transpose", Collective.REDUCE_SCATTER),
    ("transpose", Collective.ALL_GATHER),
    ("small", Collective.ALL_REDUCE),
]
KIND_NAMES = [f"{family}-{collective.name.lower()}" for family, collective in KINDS]


def plan(
    family: str, collective: Collective, size: int, count: int, *, itemsize: int = 4, rotation: int = 0
) -> Plan:
    build: Build = FAMILIES[family]
    return whole(build, collective=collective, size=size, count=count, itemsize=itemsize, rotation=rotation)


def edit(parts: Sequence[Part], rank: int, index: int, **changes: Any) -> Plan:
    """The Plan with some fields of one step changed."""
    step = replace(parts[rank].steps[index], **changes)
    return with_steps(parts, rank, (*parts[rank].steps[:index], step, *parts[rank].steps[index + 1 :]))


def with_steps(parts: Sequence[Part], rank: int, steps: Sequence[Step]) -> Plan:
    return (*parts[:rank], replace(parts[rank], steps=tuple(steps)), *parts[rank + 1 :])


def find(parts: Sequence[Part], rank: int, kind: type, nth: int = 0, **fields: object) -> int:
    """Index of the nth step of this kind whose fields have these values."""
    found = [
        index
        for index, step in enumerate(parts[rank].steps)
        if isinstance(step, kind) and all(getattr(step, name) == value for name, value in fields.items())
    ]
    return found[nth]


def contributions(parts: Sequence[Part], itemsize: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(-(2**40), 2**40) for _ in range(part.input_bytes // itemsize)] for part in parts]


def expected(
    parts: Sequence[Part], inputs: Sequence[Sequence[int]], arithmetic: Arithmetic
) -> list[list[int]]:
    """What every rank must hold: contributions folded in rank order (one order of many, if that matters)."""
    collective = parts[0].collective
    if collective is Collective.ALL_GATHER:
        return [[value for each in inputs for value in each]] * len(parts)
    total = list(inputs[0])
    for other in inputs[1:]:
        total = [arithmetic.two(one, two) for one, two in zip(total, other, strict=True)]
    total = [arithmetic.final(value) for value in total]
    if collective is Collective.ALL_REDUCE:
        return [total] * len(parts)
    ends = [sum(part.output_bytes for part in parts[: rank + 1]) for rank in range(len(parts))]
    scale = ends[-1] // len(total) if total else 1
    return [
        total[(end - part.output_bytes) // scale : end // scale]
        for part, end in zip(parts, ends, strict=True)
    ]


# Commutative and associative, so that any order of contributions gives one value; final once only.
COUNTED = Arithmetic(two=lambda one, other: one + other, final=lambda value: value * 3 + 1)


def verdict(parts: Sequence[Part], *, itemsize: int, seeds: Sequence[int], rank_ordered: bool) -> str | None:
    """What goes wrong when the Plan is executed, in any of these random orders; None if nothing does."""
    memories = (False, True) if parts[0].collective is Collective.ALL_REDUCE else (False,)
    for seed in seeds:
        try:
            inputs = contributions(parts, itemsize, seed)
            for same_memory in memories:
                problem = _judge(parts, inputs, itemsize, seed, same_memory, rank_ordered)
                if problem:
                    return f"{problem} (seed {seed}, same_memory={same_memory})"
        except Broken as problem_found:
            return f"{problem_found} (seed {seed})"
    return None


def _judge(
    parts: Sequence[Part],
    inputs: Sequence[Sequence[int]],
    itemsize: int,
    seed: int,
    same_memory: bool,
    rank_ordered: bool,
) -> str | None:
    def run(arithmetic: Arithmetic) -> list[list[int]]:
        return execute(
            parts, inputs, itemsize=itemsize, seed=seed, same_memory=same_memory, arithmetic=arithmetic
        )

    if run(COUNTED) != expected(parts, inputs, COUNTED):
        return "wrong value"
    traced = run(TRACE)
    if parts[0].collective is Collective.ALL_REDUCE and any(result != traced[0] for result in traced):
        return "ranks combined in different orders"
    if rank_ordered and traced != expected(parts, inputs, TRACE):
        return "not in rank order"
    return None


def sends_of(part: Part) -> list[Send]:
    return [step for step in part.steps if isinstance(step, Send)]


Editor = Callable[[Plan], Plan]
