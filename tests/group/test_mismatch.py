"""When one rank calls something else, every rank gets an error that says what differs; the group goes on."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ranks
import tailcut
from group.reference import shard
from ranks import Place

# What the odd rank calls, what it differs in, and how both are named.
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "dtype": ({"dtype": "float64"}, "dtype", "float32", "float64"),
    "length": ({"count": 11}, "length", "10", "11"),
    "empty": ({"count": 0}, "length", "10", "0"),
    "op": ({"op": "max"}, "op", "sum", "max"),
    "schedule": ({"schedule": "small"}, "schedule", "transpose", "small"),
    "collective": ({"collective": "all_gather"}, "collective", "all_reduce", "all_gather"),
    "large": ({"count": 300_000}, "length", "10", "300000"),
}


def call(
    group: tailcut.Group,
    *,
    collective: str = "all_reduce",
    dtype: str = "float32",
    count: int = 10,
    op: str = "sum",
    schedule: str | None = None,
) -> tailcut.Outcome:
    if collective == "all_gather":
        whole = np.zeros(count, dtype)
        own = whole[shard(count, group.size, group.rank)].copy()
        return group.all_gather(own, whole, timeout=10)
    return group.all_reduce(np.ones(count, dtype), op, schedule=schedule, timeout=10)


def one_calls_something_else(place: Place, odd: int, different: dict[str, Any]) -> tuple[Any, ...]:
    with place.connect(algorithm="transpose") as group:
        call(group)
        with pytest.raises(tailcut.Mismatch) as caught:
            call(group, **(different if place.rank == odd else {}))
        array = np.full(10, place.rank, np.int32)
        after = group.all_reduce(array, timeout=10)  # the group lives on, with the next sequence number
        assert after.sequence == 2
        assert array.tolist() == [sum(range(place.size))] * 10
        error = caught.value
        return error.what, error.reason, error.ranks, error.facts.sequence, error.facts.rank


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told_what_differs(case: str, size: int) -> None:
    different, name, usual, odd_value = CASES[case]
    odd = size - 1
    said = ranks.run(one_calls_something_else, size, odd, different)
    for rank, (what, reason, culprits, sequence, where) in enumerate(said):
        assert (reason, sequence, where) == ("mismatch", 1, rank)
        assert what.startswith("the ranks called different operations: ")
        if rank == odd:
            assert f"{name} is {odd_value} here and {usual} on rank" in what
        else:
            assert f"{name} is {usual} here and {odd_value} on rank {odd}" in what
            assert culprits == (odd,)


def misuse_then_right(place: Place) -> list[int]:
    with place.connect(algorithm="transpose") as group:
        sequences = []
        for turn in range(4):
            if turn == place.rank:
                for bad in (np.zeros(10)[::2], np.zeros(5, np.uint16), b"12345", [1.0]):
                    with pytest.raises(tailcut.Misuse):
                        group.all_reduce(bad)
                time.sleep(0.05)
            array = np.full(5, 1.0)
            sequences.append(group.all_reduce(array, timeout=10).sequence)
            assert array.tolist() == [float(place.size)] * 5
        return sequences


def test_misuse_on_one_rank_takes_no_sequence_number() -> None:
    assert ranks.run(misuse_then_right, 3) == [[0, 1, 2, 3]] * 3


def wrong_lengths_of_halves(place: Place) -> tuple[str, str]:
    """Every rank is right by itself, but not together."""
    with place.connect(algorithm="transpose") as group:
        count = 9 if place.rank == 1 else 8
        own = np.zeros(count)[shard(count, place.size, place.rank)].copy()
        with pytest.raises(tailcut.Mismatch) as gathered:
            group.all_gather(own, np.zeros(count), timeout=10)
        with pytest.raises(tailcut.Mismatch) as scattered:
            group.reduce_scatter(np.zeros(count), own, timeout=10)
        return str(gathered.value), str(scattered.value)


def test_lengths_of_the_halves_must_fit() -> None:
    first, second = ranks.run(wrong_lengths_of_halves, 2)
    assert all("length is 8 here and 9 on rank 1" in text for text in first)
    assert all("length is 9 here and 8 on rank 0" in text for text in second)


def different_settings(place: Place) -> None:
    place.connect(eager_bytes=4096 if place.rank == 2 else 65536)


def test_settings_that_ranks_do_not_share_are_refused() -> None:
    for report in ranks.reports(different_settings, 3):
        assert isinstance(report.error, tailcut.RendezvousError)
        assert report.error.what == (
            "eager_bytes is not the same on all ranks: 65536 on ranks 0 and 1; 4096 on rank 2"
        )
