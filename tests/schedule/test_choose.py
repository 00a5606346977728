"""The choice by size: explained, the same for the same arguments, never a ring for 16-bit floats."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.schedule import Choice, Crossover, choose, estimated_crossover, measured_crossover
from tailcut.types import Collective, DType, ReduceOp

CROSSOVER = Crossover(size=4, small_max_bytes=4096, ring_min_bytes=2**20, measured=True)


def chosen(
    count: int,
    *,
    dtype: DType = DType.FLOAT32,
    collective: Collective = Collective.ALL_REDUCE,
    crossover: Crossover = CROSSOVER,
) -> Choice:
    size = crossover.size
    return choose(collective, size, count, dtype.itemsize, dtype, ReduceOp.SUM, crossover)


@pytest.mark.parametrize(
    ("count", "family", "why"),
    [
        (0, "transpose", "there is nothing to exchange, so all families are the same"),
        (1, "small", "4 bytes: up to 4096 one stage, all to all, was measured to be fastest"),
        (1024, "small", "4096 bytes: up to 4096 one stage, all to all, was measured to be fastest"),
        (1025, "transpose", "4100 bytes: above 4096 sending to owners and back was measured to be fastest"),
        (2**18 - 1, "transpose", "1048572 bytes: above 4096 sending to owners and back was measured"),
        (2**18, "ring", "1048576 bytes: from 1048576 on a ring was measured to be fastest"),
    ],
)
def test_by_size(count: int, family: str, why: str) -> None:
    choice = chosen(count)
    assert choice.family == family
    assert choice.why.startswith(why)


@pytest.mark.parametrize("dtype", list(DType))
def test_a_ring_never_adds_16_bit_floats(dtype: DType) -> None:
    choice = chosen(2**22, dtype=dtype)
    if dtype in (DType.FLOAT16, DType.BFLOAT16):
        assert choice == Choice("transpose", f"a ring would round sums of {dtype.name.lower()} at every hop")
    else:
        assert choice.family == "ring"


@pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALL_GATHER])
def test_the_halves_have_one_family(collective: Collective) -> None:
    for count in (0, 1, 2**20):
        choice = chosen(count, collective=collective)
        assert choice == Choice("transpose", f"{collective.name.lower()} has no other family")


def test_a_rank_alone_has_no_choice() -> None:
    crossover = Crossover(size=1, small_max_bytes=2**30, measured=True)
    assert chosen(1, crossover=crossover).family == "transpose"


def test_an_estimate_is_called_one() -> None:
    assert "is estimated to be fastest" in chosen(1, crossover=replace(CROSSOVER, measured=False)).why


def test_a_crossover_of_another_group_is_refused() -> None:
    with pytest.raises(ValueError, match="holds for 4 ranks, not for 3"):
        choose(Collective.ALL_REDUCE, 3, 1, 4, DType.FLOAT32, ReduceOp.SUM, CROSSOVER)


@pytest.mark.parametrize(("count", "itemsize"), [(-1, 4), (1, 8)])
def test_an_impossible_array_is_refused(count: int, itemsize: int) -> None:
    with pytest.raises(ValueError, match="no float32 array has"):
        choose(Collective.ALL_REDUCE, 4, count, itemsize, DType.FLOAT32, ReduceOp.SUM, CROSSOVER)


def test_crossovers_travel_as_plain_values() -> None:
    """Rank 0 measures, everybody else is told."""
    assert Crossover(**json.loads(json.dumps(asdict(CROSSOVER)))) == CROSSOVER


def test_crossovers_are_where_the_lines_cross() -> None:
    sizes = [2**power for power in range(6, 26)]
    medians = {
        "small": {total: 20_000 + 3 * total for total in sizes},
        "transpose": {total: 40_000 + 2 * total for total in sizes},  # slower up to 20 kB
        "ring": {total: 140_000 + total for total in sizes},  # faster above 100 kB
    }
    found = measured_crossover(4, medians)
    assert found == Crossover(size=4, small_max_bytes=2**14, ring_min_bytes=2**17, measured=True)


def test_one_noisy_median_moves_nothing() -> None:
    sizes = [2**power for power in range(6, 26)]
    transpose = {total: 40_000 + 2 * total for total in sizes}
    small = {total: 20_000 + 3 * total for total in sizes}
    small[2**8] *= 3
    small[2**22] //= 2
    found = measured_crossover(4, {"small": small, "transpose": transpose})
    assert found == Crossover(size=4, small_max_bytes=2**14, measured=True)


def test_what_is_not_measured_or_never_better_is_not_chosen() -> None:
    transpose = {64: 10, 128: 10}
    assert measured_crossover(3, {"transpose": transpose}) == Crossover(3, 0, None, True)
    slower = dict.fromkeys(transpose, 11)
    assert measured_crossover(3, {"transpose": transpose, "small": slower, "ring": slower}) == Crossover(
        3, 0, None, True
    )
    elsewhere = {32: 1, 256: 1}  # sizes at which transpose was not measured
    assert measured_crossover(3, {"transpose": transpose, "small": elsewhere}) == Crossover(3, 0, None, True)


@pytest.mark.parametrize(
    ("medians", "text"),
    [
        ({"small": {64: 1}}, "transpose must be measured"),
        ({"transpose": {64: 0}}, "transpose: 0 ns for 64 bytes is no measurement"),
        ({"transpose": {64: 1}, "ring": {0: 5}}, "ring: 5 ns for 0 bytes is no measurement"),
    ],
)
def test_impossible_medians_are_refused(medians: dict[str, dict[int, int]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        measured_crossover(2, medians)


times = st.dictionaries(
    st.sampled_from([2**power for power in range(4, 20)]), st.integers(1, 10**6), min_size=1
)


@given(times, times)
def test_no_other_limit_loses_less(small: dict[int, int], transpose: dict[int, int]) -> None:
    """Compared with every limit there is, by the product of the times it would give."""
    both = sorted(small.keys() & transpose.keys())
    found = measured_crossover(4, {"small": small, "transpose": transpose}).small_max_bytes

    def product(limit: int) -> int:
        result = 1
        for total in both:
            result *= small[total] if total <= limit else transpose[total]
        return result

    best = min(product(limit) for limit in (0, *both))
    assert found in (0, *both)
    assert product(found) <= best * (1 + 1e-9)


def test_estimate_is_where_one_more_stage_costs_as_much_as_the_bytes() -> None:
    """n = 4: small sends 3 S per port, transpose 1.5 S; 50 µs at 1 GB/s are 50,000 bytes, so S = 33,333."""
    found = estimated_crossover(4, delay_ns=50_000, bytes_per_second=10**9, most_bytes=2**20)
    assert found == Crossover(size=4, small_max_bytes=33_333)
    assert (
        estimated_crossover(4, delay_ns=50_000, bytes_per_second=10**9, most_bytes=999).small_max_bytes == 999
    )
    for size in (1, 2):  # no byte more than transpose: only the memory limits it
        found = estimated_crossover(size, delay_ns=1, bytes_per_second=1, most_bytes=12345)
        assert found.small_max_bytes == 12345
    with pytest.raises(ValueError, match="at least one rank"):
        estimated_crossover(0, delay_ns=1, bytes_per_second=1, most_bytes=1)
