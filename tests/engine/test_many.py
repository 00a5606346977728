"""Many operations in flight, in another order on every rank, with more bytes than memory for them."""

from __future__ import annotations

import random

import pytest

from engine.scenario import Report, Scenario, run
from engine.virtual import KINDS, MS, SECOND, Op, Virtual

EAGER = 64 * 1024
IN_FLIGHT = 64
TAGS = 7


def mixed(size: int, seed: int, most: int = 40_000) -> tuple[Op, ...]:
    """Several sequences for each tag; a third around the eager limit, where granted and eager data meet."""
    draw = random.Random(seed)
    ops = []
    for salt in range(IN_FLIGHT):
        family, collective = draw.choice(KINDS)
        count = (EAGER // 4 + draw.randrange(-2, 3), draw.randrange(200), draw.randrange(most))[salt % 3]
        dtype = draw.choice(("float32", "int32"))
        ops.append(Op(count, family, collective, dtype, tag=draw.randrange(TAGS), salt=salt))
    return tuple(ops)


def many(size: int, seed: int, *, loss: float = 0.0, **options: int) -> Report:
    network = {"loss": loss}
    return run(Scenario(size, mixed(size, seed), seed=seed, options=options, network=network, shuffle=True))


@pytest.mark.parametrize("loss", [0, 0.01, 0.1])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_64_in_flight_in_any_order(size: int, loss: float) -> None:
    report = many(size, seed=size, loss=loss)
    assert report.resent <= report.lost + 5


@pytest.mark.parametrize("apart", [1 * MS, 100 * MS, 2 * SECOND])
def test_ranks_that_start_apart(apart: int) -> None:
    """What the first ranks send at once has to wait at the others."""
    arrivals = tuple(rank * apart for rank in range(4))
    report = run(Scenario(4, mixed(4, 1), seed=1, arrivals_ns=arrivals, shuffle=True, network={"loss": 0.01}))
    assert report.resent <= report.lost + 5
    assert report.counters["dropped_stash_full"] == 0


@pytest.mark.parametrize("stash_bytes", [0, 1000, 20_000])
@pytest.mark.parametrize("loss", [0, 0.05])
def test_a_small_stash(stash_bytes: int, loss: float) -> None:
    """Early data beyond it is dropped, counted and repaired, never silently lost."""
    options = {"stash_bytes": stash_bytes}
    arrivals = (0, 50 * MS, 0, 50 * MS)
    ops = mixed(4, 2)
    network = {"loss": loss}
    report = run(Scenario(4, ops, 1448, 2, options, network, arrivals_ns=arrivals, shuffle=True))
    assert report.counters["dropped_stash_full"] > 0
    assert report.resent <= 1.3 * report.lost + 20


@pytest.mark.parametrize("retained_bytes", [0, 1, 1448, 10_000, 100_000])
@pytest.mark.parametrize("loss", [0, 0.05])
def test_a_small_retained_pool(retained_bytes: int, loss: float) -> None:
    """An operation whose peers still miss something waits until the pool has room, or they have it all."""
    report = many(4, seed=3, loss=loss, retained_bytes=retained_bytes)
    assert report.resent <= report.lost + 5


@pytest.mark.parametrize("eager_bytes", [0, 1000, 10 << 20])
def test_other_eager_limits(eager_bytes: int) -> None:
    report = many(4, seed=4, loss=0.02, eager_bytes=eager_bytes)
    assert report.resent <= 1.1 * report.lost + 5


def test_sequences_follow_each_other_for_long() -> None:
    """400 operations on one tag, started eight at a time: what is remembered of finished ones stays small."""
    virtual = Virtual(3, seed=5, network={"loss": 0.02})
    ops = [
        Op(10 + index % 50, ("ring", "transpose", "small")[index % 3], salt=index % 5) for index in range(400)
    ]
    for first in range(0, len(ops), 8):
        for rank in virtual.ranks:
            for op in ops[first : first + 8]:
                virtual.start(rank, op)
        ended = virtual.finish(20 * SECOND)
        assert [one.code for one in ended] == ["none"] * 24
        for one in ended:
            assert one.output.tobytes() == one.op.expected(3)[one.rank].tobytes()
    assert virtual.settle(5 * SECOND)
