"""Where one schedule becomes faster than another: measured once when a group forms, the same on all ranks.

Every rank runs the same few timed operations; times are the maximum over ranks, so all ranks see the same
numbers and decide alike when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

# Bytes of messages. Each is four times the one before, so that it costs at most four times as much.
SIZES = (1024, 4096, 16384, 65536, 262144, 1048576)
RING_FROM = 262144  # bytes; below, 2(n-1) message delays cannot pay
REPEATS = 5  # timed operations of each family and size, after one that is not
TOO_SLOW = 3.0  # a family that takes so many times longer than transpose is not tried with larger messages

Run = Callable[[int, str], int]  # bytes, family -> nanoseconds
Agree = Callable[[Sequence[int]], Sequence[int]]  # the maximum over ranks of each value


def measure(run: Run, agree: Agree, *, size: int, budget_ns: int) -> dict[str, dict[int, int]]:
    """Family -> {bytes: median nanoseconds}, for as many sizes as the budget holds; the first always."""
    families = ["transpose", "small"] + (["ring"] if size > 2 else [])
    medians: dict[str, dict[int, int]] = {family: {} for family in families}
    spent = 0
    for total in SIZES:
        tried = [family for family in families if family != "ring" or total >= RING_FROM]
        # Families take turns, so that a busy moment of the machine hits all of them alike.
        times = agree([run(total, family) for _ in range(REPEATS + 1) for family in tried])
        for at, family in enumerate(tried):
            medians[family][total] = max(1, round(median(times[at + len(tried) :: len(tried)])))
            if medians[family][total] > TOO_SLOW * medians["transpose"][total]:
                families.remove(family)
        spent += sum(times)
        joining = (
            2 if "ring" in families and total < RING_FROM else 1
        )  # the ring may come in with the next size
        if spent + 4 * joining * sum(times) > budget_ns:
            break
    return {family: times for family, times in medians.items() if times}
