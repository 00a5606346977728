"""The measurement of crossovers keeps to its budget and asks the same of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailcut.group import tuning
from tailcut.group.tuning import measure
from tailcut.schedule import measured_crossover

COSTS = {"small": (10_000, 3.0), "transpose": (20_000, 1.5), "ring": (60_000, 1.4)}  # ns, ns for a byte


class Machine:
    """Times by a model; records what was run."""

    def __init__(self, slower: float = 1.0) -> None:
        self.slower = slower
        self.runs: list[tuple[int, str]] = []
        self.spent_ns = 0

    def run(self, total: int, family: str) -> int:
        base, each = COSTS[family]
        self.runs.append((total, family))
        time = round((base + total * each) * self.slower)
        self.spent_ns += time
        return time


def same(values: Sequence[int]) -> Sequence[int]:
    return values


def test_a_fast_machine_measures_everything_and_finds_the_crossover() -> None:
    machine = Machine()
    medians = measure(machine.run, same, size=4, budget_ns=10**9)
    assert set(medians) == {"small", "transpose", "ring"}
    assert set(medians["transpose"]) == set(tuning.SIZES)
    crossover = measured_crossover(4, medians)
    assert 4096 <= crossover.small_max_bytes <= 16384  # the lines cross at 6,667 bytes


def test_the_budget_holds() -> None:
    for slower in (1, 10, 100, 1000):
        machine = Machine(slower)
        measure(machine.run, same, size=4, budget_ns=50_000_000)
        first = sum(
            COSTS[family][0] + tuning.SIZES[0] * COSTS[family][1] for family in ("small", "transpose")
        )
        unavoidable = (tuning.REPEATS + 1) * first * slower
        assert machine.spent_ns <= max(50_000_000, 1.01 * unavoidable), slower
        assert {total for total, _ in machine.runs} >= {tuning.SIZES[0]}


def test_ranks_stop_together_whatever_they_measure() -> None:
    fast, slow = Machine(1), Machine(300)
    agreed: list[list[int]] = []

    def slower_one_decides(values: Sequence[int]) -> Sequence[int]:
        agreed.append(list(values))
        return values

    slow_medians = measure(slow.run, slower_one_decides, size=4, budget_ns=10**8)
    answers = iter(agreed)
    assert measure(fast.run, lambda _: next(answers), size=4, budget_ns=10**8) == slow_medians
    assert fast.runs == slow.runs


def test_a_hopeless_family_is_not_tried_further(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    measure(machine.run, same, size=4, budget_ns=10**9)
    assert max(total for total, family in machine.runs if family == "small") == tuning.SIZES[-1]
    monkeypatch.setitem(COSTS, "small", (10_000, 30.0))
    hopeless = Machine()
    measure(hopeless.run, same, size=4, budget_ns=10**9)
    assert max(total for total, family in hopeless.runs if family == "small") == 4096


def test_two_ranks_have_no_ring() -> None:
    machine = Machine()
    assert "ring" not in measure(machine.run, same, size=2, budget_ns=10**9)
