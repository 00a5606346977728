"""Operations that end otherwise than by success or death: time-outs, mismatches, cancelling, leaving."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from engine.scenario import POISON
from engine.virtual import KIND_NAMES, KINDS, MS, SECOND, US, Op, Started, Virtual, codes, result_of
from group.reference import same_bits
from tailcut.types import Collective

FAMILIES = ("ring", "transpose", "small")
SIZE = 4
Kind = tuple[str, Collective]

kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)
losses = pytest.mark.parametrize("loss", [0, 0.05])


def check_goes_on(virtual: Virtual) -> None:
    """The group works as before: a large and a small operation are right, and nothing stays behind."""
    for one in (one for rank in virtual.ranks for one in virtual.started[rank]):
        assert one.result is not None
        one.fill(POISON)
    before = [one for rank in virtual.ranks for one in virtual.started[rank]]
    again = [one for op in (Op(30_000, tag=7), Op(5, "small", tag=7)) for one in virtual.start_all(op)]
    virtual.finish(20 * SECOND)
    for one in again:
        assert one.code == "none", one.result
        assert same_bits(one.output, one.op.expected(virtual.size)[one.rank])
    assert virtual.settle(10 * SECOND)
    assert all(one.holds(POISON) for one in before)


@losses
@pytest.mark.parametrize("family", FAMILIES)
def test_a_timeout_names_who_had_not_entered(family: str, loss: float) -> None:
    """One rank gives only this operation 50 ms; two ranks are late. All hear of it, also when they enter."""
    for seed in range(4):
        virtual = Virtual(SIZE, seed=seed, network={"loss": loss})
        op = Op((5, 50_000)[seed % 2], family)
        late = [2, 3] if family != "ring" else [1, 3]  # a ring hears its neighbours enter, no others
        early = [rank for rank in virtual.ranks if rank not in late]
        impatient = virtual.start(early[0], op, timeout_ns=50 * MS)
        other = virtual.start(early[1], op)
        virtual.finish(SECOND, early)
        result = result_of(impatient)
        assert (impatient.code, sorted(result["culprits"])) == ("timeout", late), result
        assert 50 * MS <= result["elapsed_ns"] <= 51 * MS
        told = result_of(other)
        assert (other.code, told["reporter"]) == ("timeout", early[0])
        assert set(told["culprits"]) <= set(late)
        assert told["culprits"]
        after = [virtual.start(rank, op) for rank in late]
        virtual.finish(5 * SECOND)
        assert codes(after) == ["timeout"] * 2
        check_goes_on(virtual)


@losses
@pytest.mark.parametrize("family", FAMILIES)
def test_a_timeout_in_the_middle(family: str, loss: float) -> None:
    """Everybody has entered: nobody is to blame for being late, but all know of whom they still waited."""
    virtual = Virtual(SIZE, network={"loss": loss, "rate": 12.5e6})
    started = [
        virtual.start(rank, Op(1_000_000, family), timeout_ns=(30 if rank == 1 else 10_000) * MS)
        for rank in virtual.ranks
    ]
    virtual.finish(20 * SECOND)
    for one in started:
        result = result_of(one)
        assert one.code == "timeout", result
        assert result["culprits"] == []
        assert one.rank not in result["waiting"]
        assert 0 < result["received_bytes"] < result["expected_bytes"]
        assert result["elapsed_ns"] < SECOND
    assert result_of(started[1])["waiting"]
    check_goes_on(virtual)


MISMATCHES: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "int32"},
    "op": {"op": "max"},
    "count": {"count": 4001},
    "much more": {"count": 90_000},
    "nothing": {"count": 0},
    "another family": {},
}


@losses
@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.parametrize("kind", [("transpose", Collective.ALL_REDUCE), ("ring", Collective.ALL_REDUCE)])
def test_a_mismatch_ends_it_everywhere(kind: Kind, what: str, loss: float) -> None:
    """Whichever rank differs, in whatever order they come: an error on every rank, and the group goes on."""
    right = Op(4000, *kind)
    wrong = replace(right, **MISMATCHES[what])
    if what == "another family":
        wrong = replace(right, family="small" if kind[0] == "ring" else "ring")
    for seed in range(12):
        draw = random.Random(seed)
        odd = draw.randrange(SIZE)
        virtual = Virtual(SIZE, seed=seed, network={"loss": loss, "jitter_ns": draw.choice((0, 200 * US))})
        started = []
        for rank in draw.sample(range(SIZE), SIZE):
            started.append(virtual.start(rank, wrong if rank == odd else right))
            virtual.run(draw.choice((0, 0, 100 * US, 20 * MS)))
        virtual.finish(30 * SECOND)
        check_mismatch(started, odd, f"seed {seed}, rank {odd} has {wrong}")
        check_goes_on(virtual)


def check_mismatch(started: list[Started], odd: int, where: str) -> None:
    for one in started:
        result = result_of(one)
        assert one.code == "mismatch", f"{where}: rank {one.rank}: {result}"
        assert result["ours"] != result["theirs"], f"{where}: rank {one.rank}: nothing differs: {result}"
        if one.rank != odd:
            assert result["culprits"] == [odd], f"{where}: rank {one.rank}: {result}"
        else:
            assert result["culprits"], f"{where}: {result}"
            assert odd not in result["culprits"], f"{where}: {result}"


@pytest.mark.parametrize("count", [5, 4000, 60_000])
@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_takes_a_mismatched_sum_for_right(family: str, count: int) -> None:
    """The announcement that differs may get lost or come after the data: no rank may succeed meanwhile."""
    for seed in range(40):
        draw = random.Random(f"{family} {count} {seed}")
        size = draw.choice((2, 3, 5))
        odd = draw.randrange(size)
        virtual = Virtual(size, seed=seed, network={"loss": draw.choice((0.1, 0.3)), "jitter_ns": MS})
        right = Op(count, family)
        started = [
            virtual.start(rank, replace(right, op="max") if rank == odd else right) for rank in virtual.ranks
        ]
        virtual.finish(60 * SECOND)
        assert codes(started) == ["mismatch"] * size, f"seed {seed}, {size} ranks, {odd} differs"


@pytest.mark.parametrize("wrong", [{"count": 5}, {"op": "max"}])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mismatch_ends_an_empty_operation_too(family: str, wrong: dict[str, Any]) -> None:
    """No data flows that would hold ranks back which never hear the odd one's announcement."""
    right = Op(0, family)
    virtual = Virtual(6)
    odd = replace(right, **wrong)
    started = [virtual.start(rank, odd if rank == 2 else right) for rank in virtual.ranks]
    virtual.finish(5 * SECOND)
    assert codes(started) == ["mismatch"] * 6


def test_nobody_is_fooled_when_data_overtakes_announcements() -> None:
    """In a ring most ranks never hear the odd one: its neighbours must compare before they let data pass."""
    for seed in range(1000):
        size = 4 + seed % 2
        odd = seed // 2 % size
        virtual = Virtual(size, seed=seed, network={"latency_ns": US, "jitter_ns": 9 * MS})
        right = Op(1, "ring")
        started = [
            virtual.start(rank, replace(right, op="max") if rank == odd else right) for rank in virtual.ranks
        ]
        virtual.finish(60 * SECOND)
        assert codes(started) == ["mismatch"] * size, f"seed {seed}, {size} ranks, {odd} differs"


@losses
@kinds
def test_cancel_reaches_everybody(kind: Kind, loss: float) -> None:
    for seed, at_ns in enumerate((0, 100 * US, 3 * MS, 20 * MS)):
        virtual = Virtual(SIZE, seed=seed, network={"loss": loss, "rate": 12.5e6})
        started = [virtual.start(rank, Op(600_000, *kind)) for rank in range(SIZE - 1)]
        virtual.run(at_ns)
        virtual.net.cancel(1, started[1].ticket)
        virtual.poll()
        assert started[1].code == "cancelled"  # at once: the memory is the caller's again
        started[1].fill(POISON)
        virtual.finish(5 * SECOND, range(SIZE - 1))
        started.append(virtual.start(SIZE - 1, Op(600_000, *kind)))  # this one comes when it is all over
        virtual.finish(5 * SECOND)
        assert codes(started) == ["cancelled"] * SIZE
        assert all(result_of(one)["culprits"] == [1] for one in started)
        check_goes_on(virtual)


def test_cancelling_one_leaves_the_others_alone() -> None:
    virtual = Virtual(3, network={"loss": 0.02})
    kept = [one for tag in (1, 2, 3) for one in virtual.start_all(Op(50_000, tag=tag))]
    given_up = virtual.start_all(Op(50_000, tag=4))
    virtual.net.cancel(0, given_up[0].ticket)
    virtual.finish(10 * SECOND)
    assert codes(given_up) == ["cancelled"] * 3
    assert codes(kept) == ["none"] * 9
    assert all(same_bits(one.output, one.op.expected(3)[one.rank]) for one in kept)
    assert virtual.settle(10 * SECOND)


@pytest.mark.parametrize("loss", [0, 0.05, 0.2])
@kinds
def test_leaving_after_the_last_operation_breaks_nobody(kind: Kind, loss: float) -> None:
    """Each rank leaves as soon as it lingers for nobody any more, as closing a group does."""
    for seed in range(10):
        draw = random.Random(seed)
        virtual = Virtual(SIZE, seed=seed, network={"loss": loss, "jitter_ns": draw.choice((0, 100 * US))})
        ops = [Op(count, *kind, salt=count) for count in (7, 3000, 30_000)]
        for rank in draw.sample(range(SIZE), SIZE):
            for op in ops:
                virtual.start(rank, op)
            virtual.run(draw.choice((0, MS, 30 * MS)))
        left: set[int] = set()
        begun = virtual.now_ns
        while len(left) < SIZE:
            assert virtual.now_ns < begun + 30 * SECOND, f"seed {seed}: only {left} could leave"
            virtual.run(50 * US)
            for rank in set(virtual.ranks) - left:
                if not virtual.pending([rank]) and virtual.net.idle(rank):
                    virtual.net.leave(rank)
                    left.add(rank)
        for one in (one for rank in virtual.ranks for one in virtual.started[rank]):
            assert one.code == "none", f"seed {seed}: {one.result}"
            assert same_bits(one.output, one.op.expected(SIZE)[one.rank])


@losses
@kinds
def test_leaving_in_the_middle_is_named(kind: Kind, loss: float) -> None:
    """Who still needs a rank that said goodbye gets "closed" with its name, long before liveness."""
    for seed in range(5):
        virtual = Virtual(SIZE, seed=seed, network={"loss": loss, "rate": 12.5e6})
        gone = seed % SIZE
        started = virtual.start_all(Op(600_000, *kind))
        virtual.run((0, 2 * MS, 20 * MS)[seed % 3])
        virtual.net.leave(gone)
        virtual.poll()
        assert started[gone].code == "closed"
        others = [rank for rank in virtual.ranks if rank != gone]
        virtual.finish(3 * SECOND, others)
        for rank in others:
            result = result_of(started[rank])
            assert (started[rank].code, result["culprits"]) == ("closed", [gone]), result
            assert result["elapsed_ns"] < 2 * SECOND
        assert virtual.settle(10 * SECOND, others)


def test_nothing_starts_after_leaving() -> None:
    virtual = Virtual(2)
    virtual.net.leave(0)
    after = virtual.start(0, Op(100))
    virtual.poll()
    assert after.code == "closed"
