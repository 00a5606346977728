"""Which schedule family an operation takes, by its size. Pure: rank 0 measures, all ranks choose alike.

`small` sends n-1 times the bytes in one message delay, `transpose` and `ring` 2(n-1)/n times the bytes in two
and in 2(n-1) delays. Where the lines cross depends on machine and network, hence a `Crossover` is made of
medians measured at start (or, before that, of a rough model) and is the same for all ranks of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from tailcut.types import Collective, DType, ReduceOp

Medians = Mapping[str, Mapping[int, int]]  # family -> {bytes of the message: nanoseconds}


@dataclass(frozen=True, slots=True)
class Crossover:
    """From which message size on which family is the fastest, for all_reduce among `size` ranks."""

    size: int  # ranks it holds for
    small_max_bytes: int  # `small` up to and including this size; 0: never
    ring_min_bytes: int | None = None  # `ring` from this size on, where it is allowed; None: never
    measured: bool = False  # by measurement, or only by a model


@dataclass(frozen=True, slots=True)
class Choice:
    """A family, and one sentence that says why it was chosen."""

    family: str
    why: str


def choose(
    collective: Collective,
    size: int,
    count: int,
    itemsize: int,
    dtype: DType,
    op: ReduceOp,
    crossover: Crossover,
) -> Choice:
    """The family for one operation. All arguments are the same on all ranks, so the choice is.

    `op` belongs to the question, but no rule depends on it so far.
    """
    if crossover.size != size:
        raise ValueError(f"this crossover holds for {crossover.size} ranks, not for {size}")
    if count < 0 or itemsize != dtype.itemsize:
        raise ValueError(f"no {dtype.name.lower()} array has {count} elements of {itemsize} bytes")
    if collective is not Collective.ALL_REDUCE:
        return Choice("transpose", f"{collective.name.lower()} has no other family")
    if size == 1 or count == 0:
        return Choice("transpose", "there is nothing to exchange, so all families are the same")
    total, limit, start = count * itemsize, crossover.small_max_bytes, crossover.ring_min_bytes
    found = "was measured to be" if crossover.measured else "is estimated to be"
    if total <= limit:
        return Choice("small", f"{total} bytes: up to {limit} one stage, all to all, {found} fastest")
    if start is not None and total >= start and not dtype.half:
        return Choice("ring", f"{total} bytes: from {start} on a ring {found} fastest")
    if start is not None and total >= start:
        return Choice("transpose", f"a ring would round sums of {dtype.name.lower()} at every hop")
    return Choice("transpose", f"{total} bytes: above {limit} sending to owners and back {found} fastest")


def measured_crossover(size: int, medians: Medians) -> Crossover:
    """The crossovers that lose least over all measured sizes, by the sum of log time ratios to `transpose`.

    Looking at all sizes at once keeps a single noisy median from moving a crossover far. `transpose` must be
    measured; a family that was not is never chosen, and only sizes measured with both families count.
    """
    if "transpose" not in medians:
        raise ValueError("transpose must be measured: the others are compared with it")
    for family, times in medians.items():
        for total, nanoseconds in times.items():
            if total < 1 or nanoseconds < 1:
                raise ValueError(f"{family}: {nanoseconds} ns for {total} bytes is no measurement")
    small, ring = _gains(medians, "small"), _gains(medians, "ring")
    small_max, ring_min = _best_limit(small), _best_limit(ring[::-1])
    return Crossover(size=size, small_max_bytes=small_max or 0, ring_min_bytes=ring_min, measured=True)


def estimated_crossover(size: int, *, delay_ns: int, bytes_per_second: int, most_bytes: int) -> Crossover:
    """A guess while nothing is measured: `small` up to where its extra bytes take as long as a second stage.

    `delay_ns`: what a second stage costs when there is next to nothing to send. `bytes_per_second`: of one
    rank's port. `most_bytes`: `small` never above this, for it stages `size` copies of the message.
    """
    if size < 1 or delay_ns < 0 or bytes_per_second < 1 or most_bytes < 0:
        raise ValueError(
            "a crossover needs at least one rank, a rate above 0, no negative delay and no negative limit"
        )
    affordable = delay_ns * bytes_per_second // 10**9  # bytes a port sends in `delay_ns`
    # A port sends (n-1) S bytes for `small` and 2 (n-1) S / n for `transpose`: (n-1)(n-2) / n S more.
    excess = (size - 1) * (size - 2)
    limit = most_bytes if excess == 0 else min(most_bytes, affordable * size // excess)
    return Crossover(size=size, small_max_bytes=limit)


def _gains(medians: Medians, family: str) -> list[tuple[int, float]]:
    """(bytes, log of the time ratio to transpose), by size; negative where `family` is faster."""
    base, times = medians["transpose"], medians.get(family, {})
    return [(total, log(times[total] / base[total])) for total in sorted(times) if total in base]


def _best_limit(gains: Sequence[tuple[int, float]]) -> int | None:
    """The entry up to which taking the family gains most in sum; None if it never gains."""
    best, limit, running = 0.0, None, 0.0
    for total, gain in gains:
        running += gain
        if running < best:
            best, limit = running, total
    return limit
