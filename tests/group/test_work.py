"""What the engine reports becomes an Outcome, or an error whose text and reason name who caused it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import tailcut
from tailcut.errors import TailcutError
from tailcut.group.work import Identity, Work, failure, nanoseconds
from tailcut.schedule import Choice
from tailcut.types import Collective, DType, ReduceOp

IDENTITY = Identity(0, 0xABC, "all_reduce", 3, 17, 10, Choice("ring", "asked for"))
OURS = {"collective": 0, "dtype": 0, "op": 0, "family": 0, "count": 10}


def result(code: str, **more: Any) -> dict[str, Any]:
    return {
        "code": code,
        "culprits": [],
        "waiting": [],
        "reporter": -1,
        "stage": 1,
        "elapsed_ns": 2_500_000_000,
        "received_bytes": 10,
        "expected_bytes": 40,
        "resent_packets": 0,
        "ours": OURS,
        "theirs": OURS,
        "lags_ns": [None, None, None],
    } | more


DEAD, LATE, CLOSED = tailcut.PeerLost, tailcut.CollectiveTimeout, tailcut.GroupClosed
SILENT = "not a word for longer than liveness_s"


@pytest.mark.parametrize(
    ("code", "more", "kind", "text"),
    [
        ("peer_dead", {"culprits": [2]}, DEAD, f"rank 2 was lost: {SILENT}. 10 bytes"),
        ("peer_dead", {"culprits": [1, 2]}, DEAD, f"ranks 1 and 2 were lost: {SILENT}. "),
        ("peer_dead", {"culprits": [2], "reporter": 1}, DEAD, f"{SILENT} (rank 1 told us). "),
        ("timeout", {"culprits": [1]}, LATE, "timed out, rank 1 has not entered it within 2.5 s. "),
        ("timeout", {"culprits": [1, 2]}, LATE, "timed out, ranks 1 and 2 have not entered it"),
        ("timeout", {}, LATE, "all ranks entered it but data was still missing after 2.5 s. "),
        ("closed", {"culprits": [1]}, CLOSED, "rank 1 has left the group. "),
        ("closed", {"culprits": [0]}, CLOSED, "the group was closed here. "),
        ("closed", {}, CLOSED, "the group was closed here. "),
        ("cancelled", {"culprits": [0]}, CLOSED, "given up here. "),
        ("cancelled", {"culprits": [1]}, CLOSED, "rank 1 has given it up. "),
        ("gone", {"culprits": [1]}, TailcutError, "rank 1 no longer has data that is needed here. "),
    ],
)
def test_texts(code: str, more: dict[str, Any], kind: type[TailcutError], text: str) -> None:
    error = failure(IDENTITY, result(code, **more))
    assert type(error) is kind
    assert error.reason == code
    assert text in str(error)
    place = "all_reduce (tag 3, sequence 17) on rank 0 of group 00000abc in stage 1 after 2.5 s: "
    assert str(error).startswith(place)
    assert "10 bytes of 40 bytes had arrived here." in str(error)
    assert error.ranks == tuple(more.get("culprits", ()))


@pytest.mark.parametrize(
    ("theirs", "differences"),
    [
        ({"dtype": DType.FLOAT64}, ["dtype is float32 here and float64 on rank 1"]),
        ({"count": 11}, ["length is 10 here and 11 on rank 1"]),
        ({"op": ReduceOp.MAX}, ["op is sum here and max on rank 1"]),
        ({"collective": Collective.ALL_GATHER}, ["collective is all_reduce here and all_gather on rank 1"]),
        ({"family": 1}, ["schedule is ring here and transpose on rank 1"]),
        (
            {"dtype": 6, "count": 40},
            ["length is 10 here and 40 on rank 1", "dtype is float32 here and uint8 on rank 1"],
        ),
        ({"dtype": 200}, ["dtype is float32 here and unknown (200) on rank 1"]),
        ({"family": 99}, ["schedule is ring here and unknown (99) on rank 1"]),
    ],
)
def test_mismatches(theirs: dict[str, int], differences: list[str]) -> None:
    error = failure(IDENTITY, result("mismatch", culprits=[1], theirs=OURS | theirs))
    assert isinstance(error, tailcut.Mismatch)
    assert f"the ranks called different operations: {', '.join(differences)}." in str(error)


def test_who_only_waits_is_no_culprit() -> None:
    error = failure(IDENTITY, result("peer_dead", culprits=[2], waiting=[1, 2]))
    assert (error.ranks, error.waiting) == ((2,), (1,))
    assert "Only waiting: rank 1." in str(error)


class Ended:
    """An operation of the engine that is over."""

    done = True
    ok = True

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said

    def wait(self, timeout_ns: int = -1) -> bool:
        return True

    def result(self) -> dict[str, Any]:
        return self.said

    def cancel(self) -> None:
        raise AssertionError("nobody asked for this")


def outcome(lags: list[int | None]) -> tailcut.Outcome:
    said = result("none", lags_ns=lags, received_bytes=40)
    operation: Any = Ended(said)
    return Work(IDENTITY, operation, None, None).wait()


def test_outcome() -> None:
    got = outcome([None, 5_000, -2_000])
    assert got.lags_ns == (2_000, 7_000, 0)
    assert got.straggler == 1 and got.complete
    assert (got.collective, got.tag, got.sequence, got.family, got.why) == (
        "all_reduce",
        3,
        17,
        "ring",
        "asked for",
    )
    assert (got.elapsed_ns, got.received_bytes, got.expected_bytes) == (2_500_000_000, 40, 40)


def test_a_rank_not_seen_has_no_lag() -> None:
    got = outcome([None, None, 300])
    assert got.lags_ns == (0, None, 300)
    assert got.straggler == 2
    assert outcome([None, 0, None]).straggler is None


def test_an_error_is_raised_every_time() -> None:
    operation: Any = Ended(result("closed", culprits=[1]))
    work = Work(IDENTITY, operation, None, None)
    for _ in range(2):
        with pytest.raises(tailcut.GroupClosed):
            work.wait()
    assert work.done()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1, 10**9), (0.5, 5 * 10**8), (1e-9, 1), (1e300, 4 * 10**18), (float("inf"), 4 * 10**18)],
)
def test_nanoseconds(seconds: float, expected: int) -> None:
    assert nanoseconds(seconds) == expected


def test_the_quick_way_to_an_outcome_is_the_same() -> None:
    got = outcome([None, 5_000, -2_000])
    fields = dataclasses.asdict(got)
    assert got == tailcut.Outcome(**fields)
    assert hash(got) == hash(tailcut.Outcome(**fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.tag = 5  # type: ignore[misc]
