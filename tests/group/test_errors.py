"""An error tells what happened, where, how far it had come, whose fault it is, and what to do."""

from __future__ import annotations

import pickle

import pytest

import tailcut
from tailcut import errors
from tailcut.errors import Facts, TailcutError

FULL = Facts(
    rank=0,
    group=0x1F2E,
    collective="all_reduce",
    tag=3,
    sequence=17,
    stage=1,
    elapsed_ns=5_020_000_000,
    received_bytes=1_500_000,
    expected_bytes=6_000_000,
    culprits=(2,),
    waiting=(1, 3),
)
KINDS = [
    tailcut.PeerLost,
    tailcut.Mismatch,
    tailcut.CollectiveTimeout,
    tailcut.GroupClosed,
    tailcut.Misuse,
    tailcut.RendezvousError,
    tailcut.ConfigError,
]


def test_full_text() -> None:
    error = tailcut.PeerLost("rank 2 has been silent for 5 s", facts=FULL)
    assert str(error) == (
        "all_reduce (tag 3, sequence 17) on rank 0 of group 00001f2e in stage 1 after 5.02 s: "
        "rank 2 has been silent for 5 s. 1.5 MB of 6 MB had arrived here. Only waiting: ranks 1 and 3. "
        "Look at the host and the log of the named rank: it died, hung below Python, or lost its network. "
        "Raise liveness_s if ranks may be paused for longer."
    )
    assert error.ranks == (2,)
    assert error.waiting == (1, 3)
    assert error.reason == "peer_dead"


def test_unknown_facts_leave_no_holes() -> None:
    assert str(tailcut.Misuse("op is unknown")) == "op is unknown. Correct the argument."
    assert str(tailcut.GroupClosed("the group was closed", facts=Facts(rank=1))) == (
        "rank 1: the group was closed. Connect a new group; a closed one cannot be used again."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_base_and_a_known_reason(kind: type[TailcutError]) -> None:
    error = kind("it broke")
    assert isinstance(error, TailcutError)
    assert errors.ADVICE[error.reason] == error.advice
    assert str(error).endswith(error.advice)


def test_builtin_kin() -> None:
    assert issubclass(tailcut.Misuse, ValueError)
    assert issubclass(tailcut.ConfigError, ValueError)
    assert issubclass(tailcut.CollectiveTimeout, TimeoutError)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_the_way_between_processes(kind: type[TailcutError]) -> None:
    error = kind("it broke", reason="closed", facts=FULL)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.reason, copy.facts) == (str(error), "closed", FULL)


def test_every_advice_is_a_sentence() -> None:
    for reason, advice in errors.ADVICE.items():
        assert reason.isidentifier() and reason == reason.lower()
        assert advice[0].isupper() and advice.endswith((".", ").")), reason


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "no rank"),
        ((4,), "rank 4"),
        ((1, 3), "ranks 1 and 3"),
        ((1, 3, 5), "ranks 1, 3 and 5"),
        (tuple(range(40)), "40 ranks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...)"),
    ],
)
def test_ranks_text(ranks: tuple[int, ...], text: str) -> None:
    assert errors.ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 us"), (20_000_000, "20 ms"), (5_020_000_000, "5.02 s"),
     (1_800_000_000_000, "1800 s")],
)  # fmt: skip
def test_duration_text(nanoseconds: int, text: str) -> None:
    assert errors.duration_text(nanoseconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (65536, "65.5 kB"), (25 * 10**6, "25 MB"), (10**13, "10000 GB")],
)
def test_bytes_text(count: int, text: str) -> None:
    assert errors.bytes_text(count) == text
