"""Mistakes planted on purpose, one for each way in which a run is judged: so that the judge can complain."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fuzz.shrink import shrink

from engine import scenario as judge
from engine import virtual as harness
from engine.scenario import Pause, Scenario, Wrong, run
from engine.test_hostile import mangle
from engine.virtual import KIND_NAMES, KINDS, MS, SECOND, Op
from group.reference import same_bits
from tailcut import _native
from tailcut.types import Collective

Kind = tuple[str, Collective]
Row = tuple[Any, ...]
SEND, COMBINE = 0, 2

kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)


def wrong_text(scenario: Scenario) -> str:
    with pytest.raises(Wrong) as caught:
        run(scenario)
    text = str(caught.value)
    assert text.endswith(scenario.command())
    return text


@kinds
def test_a_flipped_bit_of_payload_is_seen(kind: Kind) -> None:
    """No engine can know; the comparison with numpy must."""
    op = Op(20_000, *kind, "int64")
    run(Scenario(4, (op,), seed=1))
    assert "wrong value" in wrong_text(Scenario(4, (op,), seed=1, network={"flip_payload": 0.05}))


@dataclass
class Planted:
    """Parts of one rank with one row of the Plan changed."""

    rank: int
    change: Any

    def __call__(self, *key: Any) -> _native.Part:
        (given, result, stage), *rows = harness._rows(*key)
        size, rank, itemsize = key[2], key[3], key[5]
        if rank == self.rank:
            rows = self.change(rows)
        return _native.Part(size, rank, given, result, stage, itemsize, rows)


def swap_inputs(rows: list[Row]) -> list[Row]:
    """The order of a sum: one rank adds its last two contributions the other way round."""
    at = max(index for index, row in enumerate(rows) if row[0] == COMBINE)
    inputs = rows[at][6]
    changed = (*inputs[:-2], inputs[-1], inputs[-2]) if len(inputs) > 2 else inputs[::-1]
    return [*rows[:at], (*rows[at][:6], changed, rows[at][7]), *rows[at + 1 :]]


def add_twice(rows: list[Row]) -> list[Row]:
    """A contribution counts twice, another not at all."""
    at = max(index for index, row in enumerate(rows) if row[0] == COMBINE)
    inputs = (rows[at][6][0], rows[at][6][0], *rows[at][6][2:])
    return [*rows[:at], (*rows[at][:6], inputs, rows[at][7]), *rows[at + 1 :]]


def send_too_early(rows: list[Row]) -> list[Row]:
    """A result is sent before it is there."""
    at = max(index for index, row in enumerate(rows) if row[0] == SEND and row[8])
    return [*rows[:at], (*rows[at][:8], ()), *rows[at + 1 :]]


def keep_nothing(rows: list[Row]) -> list[Row]:
    """No Send is retained, although peers may still ask."""
    return [(*row[:7], False, row[8]) if row[0] == SEND else row for row in rows]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (swap_inputs, "wrong value"),
        (add_twice, "wrong value"),
        (send_too_early, "wrong value"),
    ],
)
def test_a_wrong_plan_is_seen(change: Any, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_part", Planted(1, change))
    assert complaint in wrong_text(Scenario(4, (Op(5000),), seed=2))


def test_a_plan_that_keeps_too_little_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under loss some peers ask for what is no longer there."""
    monkeypatch.setattr(harness, "_part", Planted(1, keep_nothing))
    op = Op(2000, "transpose", Collective.ALL_GATHER)
    wrong = 0
    for seed in range(20):
        try:
            run(Scenario(3, (op,), seed=seed, network={"loss": 0.3}, limit_ns=5 * SECOND))
        except Wrong:
            wrong += 1
    assert wrong > 0


def test_a_plan_that_forgets_a_send_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(rows: list[Row]) -> list[Row]:
        at = max(index for index, row in enumerate(rows) if row[0] == SEND)
        return rows[:at] + rows[at + 1 :]

    monkeypatch.setattr(harness, "_part", Planted(2, forget))
    assert wrong_text(Scenario(3, (Op(300, "transpose", Collective.ALL_GATHER),), limit_ns=SECOND))


def test_an_operation_that_does_not_end_is_seen() -> None:
    assert "not finished" in wrong_text(Scenario(3, (Op(300),), network={"latency_ns": SECOND}, limit_ns=MS))


def test_a_false_accusation_is_seen() -> None:
    """A pause longer than liveness, where the judge expects every operation to come right."""
    pauses = (Pause(1, 100, 3 * SECOND),)
    scenario = Scenario(3, (Op(50_000),), options={"liveness_ns": SECOND}, pauses=pauses)
    assert "peer_dead" in wrong_text(scenario)


def test_memory_that_changes_after_the_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes to the caller's memory once it was given back."""
    fill = harness.Started.fill

    def fill_and_change(one: harness.Started, byte: int) -> None:
        fill(one, byte)
        one.output.view("u1")[-1] ^= 1

    monkeypatch.setattr(harness.Started, "fill", fill_and_change)
    assert "changed after its return" in wrong_text(Scenario(2, (Op(100),)))


def test_another_value_than_numpys_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one element, at one rank."""

    def spoil(got: Any, want: Any) -> bool:
        got.view("u1")[0] ^= 1
        return same_bits(got, want)

    monkeypatch.setattr(judge, "same_bits", spoil)
    assert "wrong value" in wrong_text(Scenario(2, (Op(100, in_place=False),)))


def test_the_mangler_can_give_wrong_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """With forged payload let through, test_hostile's fuzzer does find wrong values."""
    monkeypatch.setattr("engine.test_hostile.passes_for_real", lambda original, mutated: False)
    with pytest.raises(AssertionError, match="wrong value"):
        for seed in range(200):
            mangle(seed)


def test_a_failure_is_made_smaller() -> None:
    """The campaign's shrinker keeps what matters: here the tag of one operation among thirty."""
    draw = random.Random(4)
    ops = tuple(Op(draw.randrange(100), tag=index, salt=index) for index in range(30))
    scenario = Scenario(
        8, ops, network={"loss": 0.1, "latency_ns": MS}, pauses=(Pause(3, 5, 6),), shuffle=True
    )
    small = shrink(scenario, lambda each: any(op.tag == 17 for op in each.ops), seconds=10)
    assert small == replace(Scenario(2, (Op(0, tag=17),), seed=scenario.seed))
