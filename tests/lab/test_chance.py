"""What is random in a scenario comes from its seed alone, and has the distribution that was asked for."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from tailcut.lab.bursts import Bursts
from tailcut.lab.faults import Event, pauses, timeline
from tailcut.lab.relay import Course
from tailcut.lab.scenario import Fault, Stragglers
from tailcut.lab.stragglers import lag_ns, lags_ns

OPERATIONS = 4_000


def all_lags(stragglers: Stragglers, seed: int = 1) -> list[dict[int, int]]:
    return [lags_ns(stragglers, 4, seed, operation) for operation in range(OPERATIONS)]


def test_lags_come_from_the_seed_alone() -> None:
    stragglers = Stragglers("exponential", 10.0)
    assert all_lags(stragglers) == all_lags(stragglers)
    assert all_lags(stragglers) != all_lags(stragglers, seed=2)
    late = lags_ns(stragglers, 4, 1, 0)
    assert [lag_ns(stragglers, 4, 1, 0, rank) for rank in range(4)] == [
        late.get(rank, 0) for rank in range(4)
    ]


@pytest.mark.parametrize(
    "stragglers",
    [
        Stragglers("constant", 10.0),
        Stragglers("exponential", 10.0),
        Stragglers("pareto", 10.0, shape=3.0),
        Stragglers("lognormal", 10.0, shape=0.5),
        Stragglers("trace", 2.0, trace_ms=(1.0, 9.0)),
    ],
)
def test_their_mean_is_the_one_asked_for(stragglers: Stragglers) -> None:
    lags = [lag for late in all_lags(stragglers) for lag in late.values()]
    assert len(lags) == OPERATIONS
    assert statistics.mean(lags) == pytest.approx(10e6, rel=0.08)


def test_a_heavy_tail_is_heavy_and_has_an_end() -> None:
    lags = [lag for late in all_lags(Stragglers("pareto", 10.0, shape=1.5)) for lag in late.values()]
    assert max(lags) > 15 * statistics.median(lags)
    assert max(lags) <= 500e6


def test_the_straggler_changes_or_stays_and_is_sometimes_two() -> None:
    changing = all_lags(Stragglers("constant", 1.0, percent=50, second_percent=20))
    some = [late for late in changing if late]
    assert len(some) == pytest.approx(OPERATIONS / 2, rel=0.1)
    assert sum(len(late) == 2 for late in some) == pytest.approx(0.2 * len(some), rel=0.25)
    counts = [sum(rank in late for late in some) for rank in range(4)]
    assert max(counts) < 1.2 * min(counts)
    fixed = all_lags(Stragglers("constant", 1.0, hosts=(1, 3)))
    assert all(set(late) == {1, 3} for late in fixed)


def test_bursts_are_on_as_long_as_asked_and_the_clock_adds_up() -> None:
    bursts = Bursts(20.0, 80.0, seed=3)
    whole_ns = 200_000_000_000
    assert bursts.on_until_ns(whole_ns) / whole_ns == pytest.approx(0.2, rel=0.1)
    step_ns = 50_000
    seen = sum(step_ns for at_ns in range(0, 5_000_000_000, step_ns) if bursts.is_on(at_ns))
    assert bursts.on_until_ns(5_000_000_000) == pytest.approx(seen, rel=0.01)
    assert Bursts(0, 0, 1).is_on(5) and Bursts(0, 0, 1).on_until_ns(7) == 7


def test_faults_come_in_time_again_and_again_and_end_before_they_come_back() -> None:
    flapping = Fault("link", 1.0, for_s=0.5, every_s=2.0, spread_s=0.9)
    cut = Fault("cut", 2.0, host=0, to=1)
    events = list(itertools.islice(timeline([flapping, cut], 3, seed=5), 40))
    assert events == list(itertools.islice(timeline([flapping, cut], 3, seed=5), 40))
    assert [event.at_ns for event in events] == sorted(event.at_ns for event in events)
    links = [event for event in events if event.kind == "link"]
    assert [event.begins for event in links] == [True, False] * (len(links) // 2) + [True] * (len(links) % 2)
    assert len({event.host for event in links}) == 3
    assert [event for event in events if event.kind == "cut"] == [Event(2_000_000_000, "cut", 0, 1)]
    assert len(list(timeline([Fault("kill", 1.0)], 3, seed=0))) == 1


def test_pauses_end_and_do_not_overlap_on_a_host() -> None:
    stragglers = Stragglers("exponential", 300.0, every_ms=100)
    paused: set[int] = set()
    last_ns = 0
    for event in itertools.islice(pauses(stragglers, 4, seed=1), 400):
        assert event.at_ns >= last_ns
        last_ns = event.at_ns
        assert (event.host in paused) != event.begins
        (paused.add if event.begins else paused.discard)(event.host)


def test_jitter_keeps_the_order_of_a_path_and_the_mean_and_reordering_does_not() -> None:
    calm = Course(5_000_000, 500_000, 0.0, 0, random.Random(1))
    sent = range(0, 20_000_000_000, 1_000_000)
    due = [calm.due_ns(b"a", now_ns) for now_ns in sent]
    ways = [arrival - departure for arrival, departure in zip(due, sent, strict=True)]
    assert due == sorted(due)
    assert statistics.mean(ways) == pytest.approx(5_000_000, rel=0.02)
    assert statistics.stdev(ways) == pytest.approx(500_000, rel=0.15)
    wild = Course(5_000, 0, 0.1, 50_000, random.Random(1))
    late = [wild.due_ns(b"a", 0) for _ in range(2_000)]
    assert late.count(55_000) == pytest.approx(200, abs=60)
    assert late.count(5_000) == 2_000 - late.count(55_000)
