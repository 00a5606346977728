"""Quantiles never invent a sample; ratios say when they cannot decide."""

from __future__ import annotations

import random

import pytest

from tailcut.bench.figures import Ratio, operations_within, quantile, ratio, resolvable, summary


def rounds(median: float, count: int, *, seed: int, size: int = 40) -> dict[int, list[int]]:
    rng = random.Random(seed)
    return {number: [round(rng.gauss(median, median / 50)) for _ in range(size)] for number in range(count)}


def test_tails_are_samples_that_were_seen() -> None:
    samples = list(range(1, 1001))
    assert quantile(samples, 0.5) == 500.5
    assert quantile(samples, 0.99) in samples
    assert sum(sample > quantile(samples, 0.99) for sample in samples) <= 10
    assert quantile([5, 1, 9], 0.999) == 9


def test_too_few_samples_have_no_tail() -> None:
    assert resolvable(100, 0.99)
    assert not resolvable(99, 0.99)
    assert resolvable(1000, 0.999)
    few = summary({0: [3, 1], 1: [2]})
    assert (few["p50_ns"], few["p99_ns"], few["p99_9_ns"], few["max_ns"]) == (2, None, None, 3)
    many = summary({0: list(range(500)), 1: list(range(500, 1000))})
    assert many["operations"] == 1000
    assert many["p99_ns"] == pytest.approx(990, abs=1)
    assert many["p99_9_ns"] == pytest.approx(999, abs=1)


@pytest.mark.parametrize(("bar", "verdict"), [(0.6, "met"), (0.4, "missed"), (0.5, "inconclusive")])
def test_the_verdict_is_inconclusive_when_the_interval_spans_the_bar(bar: float, verdict: str) -> None:
    value = ratio(rounds(500, 10, seed=1), 0.5, rounds(1000, 10, seed=2), 0.5)
    assert value.low < value.value < value.high
    assert value.value == pytest.approx(0.5, rel=0.02)
    assert value.verdict(bar) == verdict


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(30):
        value = ratio(rounds(300, 12, seed=2 * seed), 0.5, rounds(1000, 12, seed=2 * seed + 1), 0.5)
        hits += value.low <= 0.3 <= value.high
    assert hits >= 24  # 95 % would be 28; the percentile bootstrap of 12 rounds falls a little short


def test_few_rounds_decide_nothing() -> None:
    value = ratio(rounds(1, 4, seed=1, size=2), 0.5, rounds(1000, 4, seed=2), 0.5)
    assert value.verdict(100.0) == "inconclusive"
    single = ratio({0: [1]}, 0.5, {0: [2]}, 0.5)
    assert (single.value, single.verdict(1.0)) == (0.5, "inconclusive")


def test_only_rounds_that_both_sides_have_count() -> None:
    value = ratio({0: [10], 1: [1000]}, 0.5, {0: [20], 2: [1]}, 0.5)
    assert (value.value, value.rounds) == (0.5, 1)
    with pytest.raises(ValueError, match="no round"):
        ratio({0: [1]}, 0.5, {1: [1]}, 0.5)


def test_what_all_share_in_a_round_does_not_widen_the_ratio() -> None:
    slow = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 4.0, 1.0]  # the machine in each round
    upper = {number: [round(70_000 * factor)] * 5 for number, factor in enumerate(slow)}
    lower = {number: [round(100_000 * factor)] * 5 for number, factor in enumerate(slow)}
    value = ratio(upper, 0.5, lower, 0.5)
    assert value.low == pytest.approx(0.7) == value.high


def test_a_ratio_reads_as_value_and_interval() -> None:
    assert str(Ratio(0.51234, 0.4999, 0.6, 9)) == "0.512 [0.5, 0.6]"


def test_operations_at_the_edges_of_a_window_count_in_part() -> None:
    ends = [100, 200, 300, 400]
    assert operations_within(0, ends, 0, 400) == 4
    assert operations_within(0, ends, 150, 350) == pytest.approx(2)
    assert operations_within(0, ends, 160, 170) == pytest.approx(0.1)
    assert operations_within(0, ends, 500, 600) == 0
