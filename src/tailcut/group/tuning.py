"""Where one schedule becomes faster than another: measured once when a group forms, the same on all ranks.

Every rank runs the same few timed operations; times are the maximum over ranks, so all ranks see the same
numbers and decide alike when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

# Bytes of messages. Each is four times the one before, so the next block costs at most four times as much.
SIZES = (1024, 4096, 16384, 65536, 262144, 1048576)
RING_FROM = 262144  # bytes; below, 2(n-1) message delays cannot pay
REPEATS = 3  # timed operations of a block, after one that is not
TOO_SLOW = 3.0  # a family that takes so many times longer than transpose is not tried with larger messages

Run = Callable[[int, str], int]  # bytes, family -> nanoseconds
Agree = Callable[[Sequence[int]], Sequence[int]]  # the maximum over ranks of each value


def measure(run: Run, agree: Agree, *, size: int, budget_ns: int) -> dict[str, dict[int, int]]:
    """Family -> {bytes: median nanoseconds}, of as many blocks as the budget holds."""
    families = ["transpose", "small"] + (["ring"] if size > 2 else [])
    medians: dict[str, dict[int, int]] = {family: {} for family in families}
    spent = 0
    for total in SIZES:
        for family in list(families):
            if family == "ring" and total < RING_FROM:
                continue
            times = agree([run(total, family) for _ in range(REPEATS + 1)])
            spent += sum(times)
            medians[family][total] = max(1, round(median(times[1:])))
            base = medians["transpose"][total]
            if medians[family][total] > TOO_SLOW * base:
                families.remove(family)
        ahead = 4 * (REPEATS + 1) * sum(medians[family].get(total, 0) for family in families)
        if spent + ahead > budget_ns:
            break
    return {family: times for family, times in medians.items() if times}
