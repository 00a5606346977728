"""From samples to figures: quantiles, ratios with their uncertainty, and the verdict against a bar."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2_000
ROUNDS_MIN = 5  # below this the bootstrap of rounds says nothing that could decide

Rounds = Mapping[int, Sequence[int]]  # round -> samples in nanoseconds


def quantile(samples: Sequence[int] | np.ndarray[Any, Any], q: float) -> float:
    """The median as usual; above it the next sample that was really seen, never one between two."""
    return float(np.quantile(samples, q, method="linear" if q <= 0.5 else "higher"))


def resolvable(count: int, q: float) -> bool:
    """Whether so many samples can tell this quantile from the maximum."""
    return count * (1 - q) >= 1 - 1e-9


def summary(rounds: Rounds) -> dict[str, Any]:
    """Times in nanoseconds; None where there are too few samples for a quantile."""
    samples = np.concatenate([np.asarray(part) for part in rounds.values()])

    def tail(q: float) -> int | None:
        return int(quantile(samples, q)) if resolvable(samples.size, q) else None

    return {
        "operations": int(samples.size),
        "rounds": len(rounds),
        "p50_ns": int(quantile(samples, 0.5)),
        "p99_ns": tail(0.99),
        "p99_9_ns": tail(0.999),
        "max_ns": int(samples.max()),
        "mean_ns": int(samples.mean()),
    }


@dataclass(frozen=True, slots=True)
class Ratio:
    """One quantile over another, with the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float
    rounds: int

    def verdict(self, bar: float) -> str:
        """Whether the ratio is at most the bar; inconclusive when the interval spans it."""
        if self.rounds < ROUNDS_MIN or math.isnan(self.low):
            return "inconclusive"
        if self.high <= bar:
            return "met"
        return "missed" if self.low > bar else "inconclusive"

    def word(self) -> str:
        """What the ratio of two times says of the upper one; inconclusive when the interval holds 1."""
        if self.rounds < ROUNDS_MIN or math.isnan(self.low) or self.low <= 1 <= self.high:
            return "inconclusive"
        return "faster" if self.high < 1 else "slower"

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def ratio(upper: Rounds, q_upper: float, lower: Rounds, q_lower: float, *, seed: int = 0) -> Ratio:
    """Bootstrap over rounds, the same for both sides: samples of a round share what else went on then."""
    common = sorted(set(upper) & set(lower))
    if not common:
        raise ValueError("the two sides share no round")
    tops = [np.asarray(upper[number]) for number in common]
    bottoms = [np.asarray(lower[number]) for number in common]

    def statistic(picked: np.ndarray[Any, Any]) -> float:
        top = np.concatenate([tops[i] for i in picked])
        bottom = np.concatenate([bottoms[i] for i in picked])
        return quantile(top, q_upper) / quantile(bottom, q_lower)

    everything = np.arange(len(common))
    value = statistic(everything)
    if len(common) == 1:
        return Ratio(value, math.nan, math.nan, 1)
    # By name: scipy is a tool of the benchmarks, not a dependency of the package.
    stats = importlib.import_module("scipy.stats")
    interval = stats.bootstrap(
        (everything,),
        statistic,
        vectorized=False,
        method="percentile",
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high), len(common))


def operations_within(start: int, ends: Sequence[int], begin: int, end: int) -> float:
    """How many of the operations that ended at `ends`, one after the other from `start`, fall into a window.

    An operation at an edge of the window counts by the part of its time that is inside.
    """
    total = 0.0
    for left, right in zip([start, *ends], ends, strict=False):
        inside = min(right, end) - max(left, begin)
        if inside > 0:
            total += inside / (right - left)
    return total
