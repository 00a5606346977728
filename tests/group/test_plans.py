"""A Part is chosen and built once for all operations alike; memory for Parts is bounded."""

from __future__ import annotations

import pytest

from tailcut.group import plans
from tailcut.group.plans import Plans, Ready
from tailcut.schedule import FAMILIES, Crossover, family_number
from tailcut.types import Collective, DType, ReduceOp

CROSSOVER = Crossover(size=4, small_max_bytes=1000, ring_min_bytes=100_000)


def make(algorithm: str = "auto", size: int = 4) -> Plans:
    crossover = (
        CROSSOVER if size == 4 else estimated_crossover(size, delay_ns=1, bytes_per_second=1, most_bytes=1)
    )
    return Plans(rank=1, size=size, algorithm=algorithm, crossover=crossover)


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
    parts = {
        id(made.get(Collective.ALL_REDUCE, 9, DType.INT32, ReduceOp.SUM, None, tag)[1]) for tag in range(8)
    }
    assert len(parts) == 4
    parts = {
        id(made.get(Collective.ALL_GATHER, 9, DType.INT32, ReduceOp.SUM, None, tag)[1]) for tag in range(8)
    }
    assert len(parts) == 1


def test_many_ranks_have_few_rotations() -> None:
    made = make("transpose", size=100)
    entry, _ = made.get(Collective.ALL_REDUCE, 1000, DType.INT32, ReduceOp.SUM, None, 0)
    assert entry.rotations == plans.MAX_ROTATIONS


def test_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_STEPS", 100)
    made = make("transpose")
    for count in range(1000, 1100):
        made.get(Collective.ALL_REDUCE, count, DType.INT32, ReduceOp.SUM, None, count)
        assert made._steps <= 100
        assert made._steps == sum(
            ready.steps for entry in made._entries.values() for ready in entry.ready.values()
        )
    assert len(made._entries) > 1
    assert part(made, 1099, tag=1099) is part(made, 1099, tag=1099)


def test_a_new_crossover_chooses_anew() -> None:
    made = make()
    assert family(made, 500) == "transpose"
    made.forget(Crossover(size=4, small_max_bytes=10_000))
    assert family(made, 500) == "small"
