"""Every collective gives on every rank, bit by bit, what numpy computes in rank order."""

from __future__ import annotations

import array as arrays
import hashlib
import os
from typing import Any

import numpy as np
import pytest

import ranks
from group import reference
from group.reference import DTYPES, HALVES, OPS, contribution, reduced, same_bits, shard, whole_numbers
from ranks import Place

LENGTHS = (0, 1, 2, 13, 1009)
SIZES = (2, 3, 4)


def every_all_reduce(place: Place, dtype: str) -> int:
    checked = 0
    with place.connect(algorithm="transpose") as group:
        for count in LENGTHS:
            inputs = [contribution(dtype, count, rank) for rank in range(place.size)]
            for op in OPS:
                want = reduced(op, inputs)
                for schedule in ("small", "transpose"):
                    got = inputs[place.rank].copy()
                    outcome = group.all_reduce(got, op, schedule=schedule, tag=checked % 5, timeout=10)
                    assert same_bits(got, want), (dtype, op, count, schedule, got, want)
                    assert outcome.family == schedule and outcome.complete and outcome.count == count
                    checked += 1
    return checked


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce(dtype: str, size: int) -> None:
    assert ranks.run(every_all_reduce, size, dtype) == [len(LENGTHS) * len(OPS) * 2] * size


def every_ring(place: Place) -> None:
    with place.connect(algorithm="ring") as group:
        for dtype in DTYPES:
            for count in LENGTHS:
                got = whole_numbers(dtype, count, place.rank)
                outcome = group.all_reduce(got, timeout=10)
                want = reduced("sum", [whole_numbers(dtype, count, rank) for rank in range(place.size)])
                assert same_bits(got, want), (dtype, count, got, want)
                assert outcome.family == ("transpose" if dtype in HALVES else "ring"), outcome


@pytest.mark.parametrize("size", SIZES)
def test_ring(size: int) -> None:
    ranks.run(every_ring, size)


def every_half(place: Place, dtype: str) -> None:
    with place.connect(algorithm="small") as group:
        for count in LENGTHS:
            inputs = [contribution(dtype, count, rank) for rank in range(place.size)]
            own = shard(count, place.size, place.rank)
            for op in OPS:
                given = inputs[place.rank].copy()
                got = np.zeros_like(given[own])
                group.reduce_scatter(given, got, op, timeout=10)
                assert same_bits(got, reduced(op, inputs)[own]), (dtype, op, count)
                assert same_bits(given, inputs[place.rank]), "the input was written to"
            whole = contribution(dtype, count, 99)
            got = np.zeros_like(whole)
            group.all_gather(whole[own].copy(), got, timeout=10)
            assert same_bits(got, whole), (dtype, count)
            in_place = np.zeros_like(whole)
            in_place[own] = whole[own]
            group.all_gather(in_place[own], in_place, timeout=10)
            assert same_bits(in_place, whole), (dtype, count)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter_and_all_gather(dtype: str, size: int) -> None:
    ranks.run(every_half, size, dtype)


def large(place: Place, count: int, schedule: str) -> list[str]:
    digests = []
    with place.connect(algorithm="transpose") as group:
        for dtype in ("float32", "bfloat16"):
            if schedule == "ring" and dtype in HALVES:
                continue
            got = contribution(dtype, count, place.rank)
            group.all_reduce(got, schedule=schedule, timeout=30)
            digests.append(hashlib.sha256(got.tobytes()).hexdigest())
    return digests


@pytest.mark.parametrize("schedule", ["small", "transpose", "ring"])
def test_many_packets_and_equal_bits_on_all_ranks(schedule: str) -> None:
    count = 1_000_003
    results = ranks.run(large, 4, count, schedule)
    assert results == [results[0]] * 4
    if schedule != "ring":
        for dtype, digest in zip(("float32", "bfloat16"), results[0], strict=True):
            want = reduced("sum", [contribution(dtype, count, rank) for rank in range(4)])
            assert digest == hashlib.sha256(want.tobytes()).hexdigest()


def twice(place: Place) -> tuple[str, str]:
    digests = []
    for _ in range(2):
        with place.connect(algorithm="ring") as group:
            got = contribution("float32", 100_003, place.rank)
            group.all_reduce(got, timeout=10)
            digests.append(hashlib.sha256(got.tobytes()).hexdigest())
    return digests[0], digests[1]


def test_a_pinned_plan_gives_equal_bits_from_run_to_run() -> None:
    results = ranks.run(twice, 3) + ranks.run(twice, 3)
    assert len({digest for pair in results for digest in pair}) == 1


def every_kind_of_array(place: Place) -> None:
    import torch

    total = sum(range(1, place.size + 1))
    mine = place.rank + 1
    with place.connect(algorithm="transpose") as group:
        buffer = bytearray([mine] * 10)
        group.all_reduce(buffer, timeout=10)
        assert buffer == bytearray([total] * 10)
        view = memoryview(bytearray([mine] * 20))[5:15]
        group.all_reduce(view, timeout=10)
        assert bytes(view) == bytes([total] * 10)
        numbers = arrays.array("d", [mine] * 7)
        group.all_reduce(numbers, timeout=10)
        assert list(numbers) == [total] * 7
        matrix = np.full((3, 5, 2), mine, np.int64)
        group.all_reduce(matrix[1:], timeout=10)
        assert (matrix[0] == mine).all() and (matrix[1:] == total).all()
        odd = np.frombuffer(bytearray(41), np.float64, offset=1)
        odd[:] = mine
        group.all_reduce(odd, timeout=10)
        assert odd.tolist() == [total] * 5
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
            tensor = torch.full((4, 6), mine, dtype=getattr(torch, dtype))
            group.all_reduce(tensor[2:], timeout=10)
            assert tensor[:2].eq(mine).all() and tensor[2:].eq(total).all(), dtype
        group.all_reduce(torch.empty(0), timeout=10)
        parameter = torch.nn.Parameter(torch.full((3,), float(mine)))
        group.all_reduce(parameter, timeout=10)
        assert parameter.tolist() == [total] * 3


def test_numpy_buffers_and_tensors() -> None:
    ranks.run(every_kind_of_array, 3)


class OnlyDlpack:
    """What other libraries hand over."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._owner.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._owner.__dlpack_device__()


def by_dlpack(place: Place) -> list[float]:
    numbers = np.full(100, place.rank + 1.0)
    with place.connect(algorithm="transpose") as group:
        group.all_reduce(OnlyDlpack(numbers), timeout=10)
    return numbers.tolist()


def test_dlpack() -> None:
    assert ranks.run(by_dlpack, 2) == [[3.0] * 100] * 2


def test_the_reference_itself() -> None:
    ints = [np.array([-7, 7, 127], np.int32), np.array([0, 0, 2**31 - 1], np.int32)]
    assert reference.reduced("avg", ints).tolist() == [-3, 3, (127 + 2**31 - 1 - 2**32) // 2]
    halves = [np.array([2048.0], np.float16)] * 1 + [np.array([1.0], np.float16)] * 2
    assert reference.reduced("sum", halves).tolist() == [2050.0]  # hop by hop it would stay at 2048


LARGE = 2**31 + 12_345  # bytes: no 32-bit length, signed or not times two, may hold it
LARGE_NEEDS_BYTES = 5 * LARGE  # two ranks: the array, half of it staged, the comparison


def above_2_gib(place: Place) -> int:
    with place.connect(algorithm="transpose") as group:
        array = np.full(LARGE, place.rank + 1, np.uint8)
        array[::4099] = place.rank * 7  # a prime distance: no two packets look alike
        outcome = group.all_reduce(array, timeout=40)
    assert (array[::4099] == 7).all()
    array[::4099] = 3
    assert array.min() == array.max() == 3
    return outcome.received_bytes


def available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(available_bytes() < 1.2 * LARGE_NEEDS_BYTES, reason="needs 13 GB of free memory")
def test_above_2_gib() -> None:
    first, second = ranks.run(above_2_gib, 2, timeout_s=55)
    assert first + second == 2 * LARGE
