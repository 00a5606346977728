"""A Part is chosen and built once for all operations alike; memory for Parts is bounded."""

from __future__ import annotations

import pytest

from tailcut.group import plans
from tailcut.group.plans import Plans, Ready
from tailcut.schedule import FAMILIES, Crossover, family_number
from tailcut.types import Collective, DType, ReduceOp

CROSSOVER = Crossover(size=4, small_max_bytes=1000, ring_min_bytes=100_000)


def make(algorithm: str = "auto", size: int = 4) -> Plans:
    crossover = CROSSOVER if size == 4 else Crossover(size=size, small_max_bytes=0)
    return Plans(rank=1, size=size, algorithm=algorithm, crossover=crossover)


def part(made: Plans, count: int, tag: int = 0, collective: Collective = Collective.ALL_REDUCE) -> Ready:
    return made.get(collective, count, DType.INT32, ReduceOp.SUM, None, tag)[1]


def family(
    made: Plans, count: int, dtype: DType = DType.FLOAT32, schedule: str | None = None,
    collective: Collective = Collective.ALL_REDUCE,
) -> str:  # fmt: skip
    entry, ready = made.get(collective, count, dtype, ReduceOp.SUM, schedule, 0)
    assert ready.family == family_number(entry.choice.family)
    assert entry.choice.why
    return entry.choice.family


def test_size_decides() -> None:
    made = make()
    assert [family(made, count) for count in (1, 250, 251, 24_999, 25_000)] == [
        "small",
        "small",
        "transpose",
        "transpose",
        "ring",
    ]
    assert family(made, 50_000, DType.BFLOAT16) == "transpose"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pinned_algorithm(name: str) -> None:
    made = make(name)
    assert {family(made, count) for count in (1, 100_000)} == {name}
    assert family(made, 10, schedule="small") == "small"  # the call knows better
    assert family(made, 10, collective=Collective.ALL_GATHER) == "transpose"


def test_a_pinned_ring_spares_16_bit_floats() -> None:
    made = make("ring")
    entry, _ = made.get(Collective.ALL_REDUCE, 9, DType.FLOAT16, ReduceOp.SUM, None, 0)
    assert entry.choice.family == "transpose"
    assert entry.choice.why == "algorithm is set to ring, which would round float16 at every hop"


def test_alike_operations_share_a_part() -> None:
    made = make()
    first = part(made, 9999)
    assert part(made, 9999) is first
    assert part(made, 9999, tag=4) is first
    assert part(made, 9999, tag=1) is not first
    assert part(made, 9998) is not first


def test_tags_rotate_owners_of_all_reduce_only() -> None:
    made = make("transpose")
    assert len({id(part(made, 9, tag)) for tag in range(8)}) == 4
    assert len({id(part(made, 9, tag, Collective.ALL_GATHER)) for tag in range(8)}) == 1


def test_many_ranks_have_few_rotations() -> None:
    made = make("transpose", size=100)
    entry, _ = made.get(Collective.ALL_REDUCE, 1000, DType.INT32, ReduceOp.SUM, None, 0)
    assert entry.rotations == plans.MAX_ROTATIONS


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_STEPS", 100)
    monkeypatch.setattr(plans, "STEPS_PER_RANK", 0)
    made = make("transpose")
    for count in range(1000, 1100):
        part(made, count, tag=count)
        kept = [ready for entry in made._entries.values() for ready in entry.ready.values()]
        assert made._steps == sum(ready.steps for ready in kept) <= 100
    assert len(made._entries) > 1
    assert part(made, 1099, tag=1099) is part(made, 1099, tag=1099)


def test_a_new_crossover_chooses_anew() -> None:
    made = make()
    assert family(made, 500) == "transpose"
    made.forget(Crossover(size=4, small_max_bytes=10_000))
    assert family(made, 500) == "small"
