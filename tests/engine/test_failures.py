"""Dead, paused and cut-off ranks: an error that names exactly who is to blame, in time, and no hang."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from engine.scenario import POISON, Kill, Pause, Scenario, run
from engine.virtual import KIND_NAMES, KINDS, MS, SECOND, US, Op, Started, Virtual, result_of
from tailcut.types import Collective

LIVENESS = SECOND
LATE = 100 * MS  # an error may come this much after liveness
FAMILIES = ("ring", "transpose", "small")
Kind = tuple[str, Collective]

kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)


def lively(size: int, seed: int = 0, loss: float = 0.0, rate: float = 0.0) -> Virtual:
    """`rate`: bytes per second of a port; then large operations take a while."""
    return Virtual(size, seed=seed, options={"liveness_ns": LIVENESS}, network={"loss": loss, "rate": rate})


def error_of(one: Started, code: str, culprits: Sequence[int]) -> dict[str, Any]:
    """The error of one rank, once it says what it must."""
    result = result_of(one)
    assert result["code"] == code, f"rank {one.rank}: {result}"
    assert sorted(result["culprits"]) == sorted(culprits), f"rank {one.rank}: {result}"
    assert not set(result["waiting"]) & {*culprits, one.rank}, f"rank {one.rank}: {result}"
    assert result["received_bytes"] <= result["expected_bytes"]
    return result


def check_all_fails_at_once(virtual: Virtual, ranks: Sequence[int], code: str) -> None:
    """After the group has failed nothing waits any more, and nothing goes on behind the caller's back."""
    for rank in ranks:
        after = virtual.start(rank, Op(100, tag=9))
        virtual.poll()
        assert result_of(after)["elapsed_ns"] == 0
        assert after.code == code
        after.fill(POISON)
    assert virtual.settle(5 * SECOND, ranks)
    assert virtual.net.run(virtual.now_ns + 3600 * SECOND), "something goes on for ever"
    assert all(after.holds(POISON) for rank in ranks for after in virtual.started[rank][-1:])


def kill_during(kind: Kind, size: int, dead: int, at_ns: int, seed: int, loss: float) -> None:
    virtual = lively(size, seed, loss)
    killed_ns = virtual.now_ns + at_ns
    survivors = [rank for rank in virtual.ranks if rank != dead]
    op = Op((0, 3, 5000, 60_000)[seed % 4], *kind)
    for rank in virtual.ranks:
        virtual.start(rank, op)
    alive = True
    while not all(virtual.started[rank][-1].code not in ("none", "running") for rank in survivors):
        assert virtual.now_ns < killed_ns + 60 * SECOND, "hangs"
        step = 100 * US if alive else MS
        if alive and virtual.now_ns + step >= killed_ns:
            step, alive = killed_ns - virtual.now_ns, False
        for one in virtual.run(step):
            if one.code == "none":
                virtual.start(one.rank, op)  # as a training loop does
        if not alive:
            virtual.net.kill(dead)
    for rank in survivors:
        last = virtual.started[rank][-1]
        result = error_of(last, "peer_dead", [dead])
        heard = max(killed_ns, last.at_ns)
        assert last.at_ns + result["elapsed_ns"] <= heard + LIVENESS + LATE, f"rank {rank}: {result}"
    check_all_fails_at_once(virtual, survivors, "peer_dead")


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@kinds
def test_a_rank_dies_at_any_moment(kind: Kind, size: int) -> None:
    draw = random.Random(f"{kind} {size}")
    for seed in range(12):
        at_ns = int(10 ** draw.uniform(3, 8))
        dead, loss = draw.randrange(size), draw.choice((0, 0, 0.01, 0.05))
        try:
            kill_during(kind, size, dead, at_ns, seed, loss)
        except AssertionError as problem:
            call = f"kill_during({kind}, {size}, {dead}, {at_ns}, {seed}, {loss})"
            raise AssertionError(f"{problem}\nreproduce: {call}") from problem


@kinds
def test_waiting_lists_who_has_not_finished(kind: Kind) -> None:
    """Rank 3 never comes. Who has sent all it can is not listed; who itself waits for rank 3 is."""
    virtual = lively(4)
    virtual.net.kill(3)
    started = [virtual.start(rank, Op(4000, *kind)) for rank in range(3)]
    virtual.finish(10 * SECOND, range(3))
    for one in started:
        result = error_of(one, "peer_dead", [3])
        others = {0, 1, 2} - {one.rank}
        if kind[0] == "ring":
            assert set(result["waiting"]) <= {(one.rank - 1) % 4}
        elif kind == ("transpose", Collective.ALL_REDUCE):
            assert set(result["waiting"]) == others  # their reduced shards lack rank 3's contribution
        else:
            assert result["waiting"] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_two_die(family: str) -> None:
    """Everybody names one of the dead at least, and nobody who is alive."""
    for seed in range(8):
        draw = random.Random(f"{family} {seed}")
        dead = draw.sample(range(6), 2)
        kills = tuple(Kill(rank, int(10 ** draw.uniform(3, 7))) for rank in dead)
        options = {"liveness_ns": LIVENESS}
        run(Scenario(6, (Op(30_000, family), Op(50, family)), seed=seed, options=options, kills=kills))


@pytest.mark.parametrize("family", FAMILIES)
def test_two_die_at_once_and_both_are_named(family: str) -> None:
    """By those who wait for both; in a ring each rank waits for one neighbour."""
    virtual = lively(5)
    for dead in (1, 4):
        virtual.net.kill(dead)
    started = [virtual.start(rank, Op(4000, family)) for rank in (0, 2, 3)]
    virtual.finish(10 * SECOND, (0, 2, 3))
    named = [set(result_of(one)["culprits"]) for one in started]
    assert all(names and names <= {1, 4} for names in named), named
    if family != "ring":
        assert named == [{1, 4}] * 3


@pytest.mark.parametrize("loss", [0, 0.05])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_short_pause_is_only_a_delay(family: str, loss: float) -> None:
    options = {"liveness_ns": LIVENESS}
    ops = tuple(Op(count, family, salt=count) for count in (10, 30_000, 90_000))
    for seed in range(10):
        draw = random.Random(f"{family} {loss} {seed}")
        pauses = tuple(
            Pause(rank, int(10 ** draw.uniform(3, 8)), int(LIVENESS * draw.uniform(0.01, 0.85)))
            for rank in draw.sample(range(4), draw.choice((1, 1, 4)))
        )
        run(Scenario(4, ops, seed=seed, options=options, network={"loss": loss}, pauses=pauses))


@pytest.mark.parametrize("loss", [0, 0.05])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_pause_is_named_and_learns_of_it(family: str, loss: float) -> None:
    """The others go on after liveness; the paused rank gets an error when it is back, not a hang."""
    for seed in range(6):
        virtual = lively(4, seed, loss, rate=125e6)
        paused, at_ns = seed % 4, (50 * US, 2 * MS, 4 * MS)[seed % 3]
        duration = (LIVENESS + 2 * LATE, 30 * LIVENESS)[seed % 2]
        for rank in virtual.ranks:
            virtual.start(rank, Op(300_000, family))
            virtual.start(rank, Op(10, family, tag=1))
        virtual.run(at_ns)
        virtual.net.pause(paused, duration)
        begun = virtual.now_ns
        others = [rank for rank in virtual.ranks if rank != paused]
        virtual.finish(2 * LIVENESS, others)
        for rank in others:
            result = error_of(virtual.started[rank][0], "peer_dead", [paused])
            assert result["elapsed_ns"] <= at_ns + LIVENESS + LATE
        virtual.finish(begun + duration + LIVENESS - virtual.now_ns)
        assert not virtual.pending(), "the paused rank hangs"
        error_of(virtual.started[paused][0], "peer_dead", [paused])  # it is the one whom the others gave up
        check_all_fails_at_once(virtual, virtual.ranks, "peer_dead")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_pause_after_which_nobody_needs_the_rank(family: str) -> None:
    """It had sent all the others want. They are done; it learns that they gave it up."""
    virtual = lively(3)
    for rank in virtual.ranks:
        virtual.net.set_path_loss(rank, 2, 1.0)  # nothing comes through to rank 2
    started = virtual.start_all(Op(10, family))
    virtual.run(5 * MS)
    virtual.net.pause(2, 10 * LIVENESS)
    for rank in virtual.ranks:
        virtual.net.set_path_loss(rank, 2, 0.0)
    virtual.finish(15 * LIVENESS)
    if [one.code for one in started[:2]] == ["none"] * 2:
        error_of(started[2], "peer_dead", [2])
    else:  # the others did need it
        for one in started:
            error_of(one, "peer_dead", [2])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_partition_between_two_ranks(family: str, both_ways: bool) -> None:
    """One of the two is named, by everybody, in time. (Who of them is cut off, nobody can know.)"""
    for seed, at_ns in enumerate((0, 100 * US, 4 * MS)):
        virtual = lively(4, seed, rate=125e6)
        virtual.start_all(Op(300_000, family))
        virtual.run(at_ns)
        virtual.net.cut(1, 2, False)
        if both_ways:
            virtual.net.cut(2, 1, False)
        begun = virtual.now_ns
        virtual.finish(10 * SECOND)
        first = [virtual.started[rank][0] for rank in virtual.ranks]
        if family == "ring" and all(one.code == "none" for one in first):
            continue  # rank 1 sends to rank 2, but everything had passed
        failed = [one for one in first if one.code != "none"]
        assert first[2] in failed
        assert family == "small" or len(failed) == 4  # in small, who has all contributions is done
        for one in failed:
            result = result_of(one)
            assert one.code == "peer_dead", f"rank {one.rank}: {result}"
            assert set(result["culprits"]) in ({1}, {2}, {1, 2}), f"rank {one.rank}: {result}"
            assert result["elapsed_ns"] <= begun - one.at_ns + LIVENESS + LATE
        check_all_fails_at_once(virtual, virtual.ranks, "peer_dead")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_partition_that_heals(family: str) -> None:
    for seed, (at_ns, heals_ns) in enumerate(((0, 900 * MS), (200 * US, 500 * MS), (1 * MS, 10 * MS))):
        virtual = lively(4, seed, rate=125e6)
        started = virtual.start_all(Op(300_000, family))
        virtual.run(at_ns)
        for ways in ((1, 2), (2, 1), (0, 3)):
            virtual.net.cut(*ways, False)
        virtual.run(heals_ns - at_ns)
        for ways in ((1, 2), (2, 1), (0, 3)):
            virtual.net.cut(*ways, True)
        virtual.finish(10 * SECOND)
        assert [one.code for one in started] == ["none"] * 4
        for one in started:
            assert one.output.tobytes() == one.op.expected(4)[one.rank].tobytes()
