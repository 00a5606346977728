"""What holds in every scenario, by hypothesis; `make fuzz` runs thousands more."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.random_scenarios import random_scenario
from engine.scenario import Report, Scenario, run
from engine.virtual import SECOND

QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
chance = st.randoms(use_true_random=False)


def keeps_order(scenario: Scenario) -> bool:
    return not scenario.network.get("jitter_ns") and not scenario.network.get("duplicate")


def spans_s(scenario: Scenario, report: Report) -> float:
    """How long ranks had something to talk about, at most."""
    paused = sum(pause.duration_ns for pause in scenario.pauses)
    return (report.elapsed_ns + max(scenario.arrivals_ns, default=0) + paused) / SECOND


def check_costs(scenario: Scenario, report: Report) -> None:
    """Repairs in proportion to what was lost, control packets to data and to the time that ranks wait."""
    if keeps_order(scenario):
        assert report.resent <= 1.5 * report.lost + 0.05 * report.planned + 20
    else:
        assert report.resent <= 2 * report.lost + report.planned + 20
    pairs, ops = scenario.size * (scenario.size - 1), len(scenario.ops)
    # What is asked again goes out in 1, 2, 4 and 8 copies before it is asked in single packets.
    insisting = 14 * (pairs * ops + report.resent) if report.lost else 0
    idle_talk = pairs * (10 * ops + 12 * min(ops, 24) * spans_s(scenario, report))
    assert report.controls <= 2 * (report.planned + report.resent) + idle_talk + insisting


@QUICK
@given(chance)
def test_every_scenario_comes_right(draw: random.Random) -> None:
    run(random_scenario(draw))


@settings(QUICK, max_examples=80)
@given(st.integers(0, 2**32))
def test_costs_stay_in_proportion(seed: int) -> None:
    scenario = random_scenario(random.Random(seed))
    if scenario.kills:
        return
    report = run(scenario)
    try:
        check_costs(scenario, report)
    except AssertionError as problem:
        raise AssertionError(f"{problem}\n{report}\nshow: {scenario.command()}") from problem


@settings(QUICK, max_examples=20)
@given(chance)
def test_the_same_scenario_is_the_same_run(draw: random.Random) -> None:
    scenario = random_scenario(draw)
    assert run(scenario) == run(Scenario.from_json(scenario.to_json()))
