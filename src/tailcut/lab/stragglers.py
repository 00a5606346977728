"""Who is late to an operation and by how much: a pure function of seed, operation and rank.

Every rank can compute its own lag without a word to the others, and a second run is late in the same way.
"""

from __future__ import annotations

import math
import random

from tailcut.lab.scenario import Stragglers

LAG_MEANS_MAX = 50  # a heavy tail is cut off at so many times its mean: an operation must end some day


def lag_ns(stragglers: Stragglers, ranks: int, seed: int, operation: int, rank: int) -> int:
    """How late this rank enters this operation; 0 for most."""
    return lags_ns(stragglers, ranks, seed, operation).get(rank, 0)


def lags_ns(stragglers: Stragglers, ranks: int, seed: int, operation: int) -> dict[int, int]:
    """The stragglers of one operation, by rank."""
    rng = random.Random(f"lag {seed} {operation}")  # text: equal on every machine, unlike hash()
    if rng.random() * 100 >= stragglers.percent:
        return {}
    late = stragglers.hosts
    if not late:
        two = ranks > 1 and rng.random() * 100 < stragglers.second_percent
        late = tuple(rng.sample(range(ranks), 2 if two else 1))
    return {rank: round(_draw_ms(stragglers, operation, rng) * 1e6) for rank in late}


def _draw_ms(stragglers: Stragglers, operation: int, rng: random.Random) -> float:
    mean, shape = stragglers.lag_ms, stragglers.shape
    if stragglers.distribution == "trace":
        return mean * stragglers.trace_ms[operation % len(stragglers.trace_ms)]
    if mean == 0 or stragglers.distribution == "constant":
        return mean
    if stragglers.distribution == "exponential":
        lag = rng.expovariate(1 / mean)
    elif stragglers.distribution == "pareto":
        lag = rng.paretovariate(shape) * mean * (shape - 1) / shape
    else:
        lag = rng.lognormvariate(math.log(mean) - shape**2 / 2, shape)
    return min(lag, LAG_MEANS_MAX * mean)
