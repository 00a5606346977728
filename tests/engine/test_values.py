"""Every family, size, length, type and reduction over every kind of network: the bits that numpy gets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from engine.scenario import Report, Scenario, run
from engine.virtual import KIND_NAMES, KINDS, MS, SECOND, US, Op
from tailcut.types import Collective, DType, ReduceOp

SIZES = (1, 2, 3, 4, 5, 8, 16)
PAYLOAD = 1448
LOSSES = (0.001, 0.01, 0.05, 0.1, 0.3)
Kind = tuple[str, Collective]

kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)


def types_of(kind: Kind) -> list[tuple[str, str]]:
    """(dtype, op); a ring rounds at every hop and so takes no 16-bit floats."""
    pairs = product(DType, ReduceOp)
    return [(d.name.lower(), o.name.lower()) for d, o in pairs if not (kind[0] == "ring" and d.half)]


def lengths(kind: Kind, size: int) -> list[int]:
    """The awkward ones, and one of several blocks in every shard."""
    several = 26_007 if kind[0] == "small" else size * 13_001 + 5
    return [0, 1, size - 1, size + 1, 1000 * size + 7, several]


def ops_of(kind: Kind, size: int) -> Iterator[Op]:
    """All lengths, types in turn."""
    types = types_of(kind)
    for index, count in enumerate(lengths(kind, size)):
        dtype, op = types[(7 * index + 11 * size) % len(types)]
        if op == "avg" and count > 20_000:
            op = "sum"  # the reference divides integers slowly
        rotation = index % size if kind[1] is Collective.ALL_REDUCE else 0
        yield Op(count, *kind, dtype, op, rotation=rotation, in_place=index % 2 == 0, salt=index)


def check_repairs(report: Report, factor: float = 1.0) -> None:
    """Where packets keep their order, what was lost is sent again, and nothing else (but a few)."""
    copied = report.counters["data_copied"]
    assert report.resent + copied >= report.lost - report.counters["dropped_duplicate"]
    assert report.resent <= factor * report.lost + 5, report
    assert copied <= report.resent + 8, "copies are for the few packets whose repairs get lost as well"


def check_control(report: Report, size: int, waited_ns: int = 0) -> None:
    """Control packets stay in proportion to data; while waiting, each pair of ranks talks now and then."""
    pairs = size * (size - 1)
    assert report.controls <= 0.25 * (report.planned + report.resent) + pairs * (8 + 25 * waited_ns / SECOND)


@pytest.mark.parametrize("size", SIZES)
@kinds
def test_every_type(kind: Kind, size: int) -> None:
    """All types and reductions at once, a short and an indivisible length each."""
    types = types_of(kind)
    for count in (size + 1, 37 * size - 1):
        ops = [Op(count, *kind, dtype, op, salt=index) for index, (dtype, op) in enumerate(types)]
        report = run(Scenario(size, tuple(ops), seed=count))
        assert report.resent == report.lost == 0


@pytest.mark.parametrize("size", SIZES)
@kinds
def test_every_length(kind: Kind, size: int) -> None:
    for op in ops_of(kind, size):
        report = run(Scenario(size, (op,)))
        assert report.resent == 0
        assert report.counters["packets_lost"] == 0
        check_control(report, size)


@pytest.mark.parametrize("payload", [512, 1448, 8944, 65_480])
@kinds
def test_every_payload(kind: Kind, payload: int) -> None:
    """Region lengths around multiples of packets and blocks."""
    size, full = 3, payload // 4
    for count in (full, size * full, size * 16 * full + 1, size * 64 * full - 1 if payload < 9000 else 1):
        run(Scenario(size, (Op(count, *kind),), payload=payload, network={"loss": 0.02}, seed=count))


@pytest.mark.parametrize("loss", LOSSES)
@kinds
def test_loss(kind: Kind, loss: float) -> None:
    for size in (2, 3, 5, 8, 16):
        for op in list(ops_of(kind, size))[-2:]:
            report = run(Scenario(size, (op,), network={"loss": loss}, seed=size))
            check_repairs(report)


@kinds
def test_bursts_of_loss(kind: Kind) -> None:
    for seed, (gap, length) in enumerate(((300 * US, 30 * US), (1 * MS, 500 * US), (20 * MS, 10 * MS))):
        network = {"burst_gap_ns": gap, "burst_ns": length}
        report = run(Scenario(4, tuple(ops_of(kind, 4)), network=network, seed=seed))
        check_repairs(report)


@kinds
def test_duplicates(kind: Kind) -> None:
    for seed, duplicate in enumerate((0.01, 0.3, 1.0)):
        network = {"duplicate": duplicate, "loss": 0.02}
        report = run(Scenario(4, tuple(ops_of(kind, 4)), network=network, seed=seed))
        check_repairs(report)
        assert report.counters["dropped_duplicate"] + report.counters["dropped_stale"] > 0


@kinds
def test_reordering(kind: Kind) -> None:
    """Jitter of many times the latency: packets overtake each other all the time."""
    for seed, times in enumerate((1, 5, 20)):
        network = {"latency_ns": 50 * US, "jitter_ns": times * 50 * US, "duplicate": 0.01}
        report = run(Scenario(4, tuple(ops_of(kind, 4)), network=network, seed=seed))
        assert report.resent <= 0.5 * report.planned  # late looks like lost, but not again and again


@pytest.mark.parametrize("size", [2, 4, 16])
@kinds
def test_shallow_queues(kind: Kind, size: int) -> None:
    """Ports of 250 Mbit/s whose queues hold 20 full packets: drops are repaired, time stays in proportion."""
    rate, queue = 31.25e6, 30_000
    op = Op(40_003 if kind[0] != "small" else 20_003, *kind)
    report = run(Scenario(size, (op,), network={"rate": rate, "queue_bytes": queue}, seed=size))
    check_repairs(report, factor=1.1)
    wire_ns = report.planned / size * (PAYLOAD + 66) / rate * SECOND
    assert report.elapsed_ns < 10 * wire_ns + 400 * MS, (report.elapsed_ns / MS, wire_ns / MS)


@pytest.mark.parametrize("loss", [0, 0.01, 0.1])
@kinds
def test_a_rank_that_comes_late(kind: Kind, loss: float) -> None:
    """10 s late: the others wait without accusing it and without a storm of questions."""
    for size in (2, 4, 16):
        waited = 10 * SECOND
        arrivals = (*[0] * (size - 1), waited)
        ops = tuple(Op(count, *kind, salt=count) for count in (100, 20_000, 50_000))
        report = run(Scenario(size, ops, network={"loss": loss}, arrivals_ns=arrivals, seed=size))
        check_repairs(report)
        check_control(report, size, waited)
        assert report.elapsed_ns < waited + 2 * SECOND


@kinds
def test_the_same_seed_is_the_same_run(kind: Kind) -> None:
    network = {"loss": 0.05, "duplicate": 0.05, "jitter_ns": 100 * US}
    first, again, other = (
        run(Scenario(4, tuple(ops_of(kind, 4)), network=network, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.digest != other.digest
