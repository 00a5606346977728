"""A group forms only of ranks that fit together; else every rank hears the same error: field and ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import ranks
from tailcut import Config, RendezvousError
from tailcut.transport import rendezvous
from tailcut.transport.rendezvous import DATAGRAM_SIZES, Member, Membership, Rounds


def on_ranks(size: int, body: Callable[[Rounds], Any]) -> list[Any]:
    gather = ranks.ThreadGather(size)
    return ranks.run_threads(lambda rank: body(Rounds(gather.of(rank), rank, size)), size)


def meet(rounds: Rounds, **settings: Any) -> Membership:
    semantic = Config(**settings).semantic()
    return rendezvous.meet(rounds, host="127.0.0.1", port=5000 + rounds.rank, semantic=semantic)


def error_of(results: list[Any]) -> RendezvousError:
    """The one error that all ranks got."""
    assert all(isinstance(each, RendezvousError) for each in results), results
    assert len({each.what for each in results}) == 1
    assert [each.facts.rank for each in results] == list(range(len(results)))
    return results[0]


def test_all_ranks_learn_the_same() -> None:
    first, second, third = on_ranks(3, meet)
    assert first == second == third
    assert [(member.rank, member.host, member.port) for member in first.members] == [
        (0, "127.0.0.1", 5000),
        (1, "127.0.0.1", 5001),
        (2, "127.0.0.1", 5002),
    ]
    assert 0 <= first.group < 2**32


def test_every_group_has_another_id() -> None:
    assert len({on_ranks(2, meet)[0].group for _ in range(8)}) == 8


def test_settings_that_differ_are_refused() -> None:
    def body(rounds: Rounds) -> None:
        meet(rounds, eager_bytes=1000 if rounds.rank == 2 else 2000)

    error = error_of(on_ranks(4, body))
    assert error.what == "eager_bytes is not the same on all ranks: 2000 on ranks 0, 1 and 3; 1000 on rank 2"
    assert error.reason == "config_mismatch"


def test_settings_of_one_host_may_differ() -> None:
    results = on_ranks(2, lambda rounds: meet(rounds, port=7000 * rounds.rank, timeout_s=10.0 + rounds.rank))
    assert all(isinstance(each, Membership) for each in results)


@pytest.mark.parametrize(
    ("field", "theirs", "what", "reason"),
    [
        ("version", "9.9", "rank 1 runs tailcut 9.9, rank 0 ", "version"),
        ("byte_order", "big", "rank 1 has byte order big, rank 0 ", "byte_order"),
        (
            "host",
            "fd00::1",
            "IPv4 and IPv6 cannot be mixed: rank 0 (127.0.0.1:5000) and rank 1 (",
            "family",
        ),
        (
            "identity",
            "another",
            "ranks 0 and 1 offer a loopback address, but the group spans",
            "loopback",
        ),
        ("port", 5000, "ranks 0 and 1 both claim 127.0.0.1:5000", "socket"),
        ("port", 0, "rank 1 did not introduce itself properly", "bad_message"),
        ("port", True, "rank 1 did not introduce itself properly", "bad_message"),
        ("port", "5001", "rank 1 did not introduce itself properly", "bad_message"),
        ("host", "example.org", "rank 1 did not introduce itself properly", "bad_message"),
        ("host", 5, "rank 1 did not introduce itself properly", "bad_message"),
        ("config", [], "rank 1 did not introduce itself properly", "bad_message"),
        ("config", {}, "liveness_s is not the same on all ranks", "config_mismatch"),
        ("identity", None, "rank 1 did not introduce itself properly", "bad_message"),
    ],
)
def test_ranks_that_do_not_fit(field: str, theirs: object, what: str, reason: str) -> None:
    gather = ranks.ThreadGather(2)

    def body(rank: int) -> None:
        def forge(payload: bytes) -> list[bytes]:
            said = json.loads(payload)
            said["value"][field] = theirs
            return gather.of(rank)(json.dumps(said).encode())

        meet(Rounds(forge if rank == 1 else gather.of(rank), rank, 2))

    error = error_of(ranks.run_threads(body, 2))
    assert error.what.startswith(what)
    assert error.reason == reason


def test_loopback_on_one_of_two_hosts_is_named() -> None:
    gather = ranks.ThreadGather(3)

    def body(rank: int) -> None:
        def from_another_host(payload: bytes) -> list[bytes]:
            said = json.loads(payload)
            said["value"]["identity"] = f"host {rank}"
            return gather.of(rank)(json.dumps(said).encode())

        host = "127.0.1.1" if rank == 0 else f"10.0.0.{rank}"
        rendezvous.meet(
            Rounds(from_another_host, rank, 3), host=host, port=5000, semantic=Config().semantic()
        )

    error = error_of(ranks.run_threads(body, 3))
    assert error.what == "rank 0 offers a loopback address, but the group spans several hosts"
    assert (error.reason, error.ranks) == ("loopback", (0,))


def test_a_rank_that_fails_between_rounds_tells_the_others() -> None:
    def body(rounds: Rounds) -> None:
        with rounds.together("open"):
            if rounds.rank == 1:
                raise OSError("no socket for me")
        rounds.share("open", None)

    first, second, third = on_ranks(3, body)
    assert isinstance(second, OSError) and str(second) == "no socket for me"
    for error in (first, third):
        assert isinstance(error, RendezvousError)
        assert error.what == "rank 1 failed (rank 1: no socket for me)"
        assert (error.reason, error.ranks) == ("peer_failed", (1,))


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xff", b"[]", b"{}", b'{"round": "x", "rank": 0}', b'{"round": "y", "rank": 1}', b"[" * 10000],
)
def test_an_answer_that_makes_no_sense(answer: bytes) -> None:
    rounds = Rounds(lambda payload: [payload, answer], 0, 2)
    with pytest.raises(RendezvousError, match="rank 1 said something else than expected in round 'x'"):
        rounds.share("x", 1)


@pytest.mark.parametrize("answers", [[], [b"{}"] * 3, None, {}])
def test_an_all_gather_that_does_not_gather_all(answers: Any) -> None:
    with pytest.raises(RendezvousError, match="answers for 2 ranks"):
        Rounds(lambda _: answers, 0, 2).share("x", 1)


MEMBERS = Membership(
    1, tuple(Member(rank, f"10.0.0.{rank + 1}", 5000 + rank, str(rank)) for rank in range(4))
)


def agreed(confirmed: list[list[Any]], pinned: int = 0) -> list[Any]:
    size = len(confirmed)
    return on_ranks(
        size, lambda rounds: rendezvous.agree_payload(rounds, MEMBERS, confirmed[rounds.rank], pinned)
    )


def test_the_smallest_path_decides_for_all() -> None:
    assert agreed([[8972, 8972, 1452], [8972, 8972, 1472], [1472, 1472, 8972]]) == [1452] * 3


def test_a_group_of_one_takes_the_largest() -> None:
    assert agreed([[8972]]) == [8972]


def test_a_blocked_host_is_named_by_all_ranks() -> None:
    error = error_of(agreed([[9, 9, 0, 9], [9, 9, 0, 9], [0, 0, 9, 0], [9, 9, 0, 9]]))
    assert "UDP between rank 0 (10.0.0.1:5000) and rank 2 (10.0.0.3:5002) is blocked" in error.what
    assert "rank 2 (10.0.0.3:5002) and rank 3 (10.0.0.4:5003) is blocked" in error.what
    assert (error.reason, error.ranks) == ("udp_blocked", (2,))


def test_a_blocked_path_names_both_ends() -> None:
    error = error_of(agreed([[9, 9, 9], [9, 9, 0], [9, 0, 9]]))
    assert error.what.startswith("UDP between rank 1 (10.0.0.2:5001) and rank 2 (10.0.0.3:5002) is blocked")
    assert error.ranks == (1, 2)


def test_a_path_too_narrow_one_way() -> None:
    error = error_of(agreed([[9000, 0], [9000, 9000]], pinned=9000))
    assert error.what == (
        "datagrams of 9000 bytes from rank 0 (10.0.0.1:5000) to rank 1 (10.0.0.2:5001) do not arrive"
    )


def test_many_blocked_pairs_are_cut() -> None:
    error = error_of(agreed([[9 if a == b else 0 for b in range(4)] for a in range(4)]))
    assert error.what.count("is blocked") == 4 and error.what.endswith(", and 2 more pairs")
    assert error.ranks == ()


@pytest.mark.parametrize("sizes", [[9], [9, -1], [9, 70000], [9, "9"], [9, True], None, {}])
def test_results_of_probes_are_checked(sizes: Any) -> None:
    def body(rounds: Rounds) -> None:
        if rounds.rank == 1:
            rounds.share("probe", sizes)
        else:
            rendezvous.agree_payload(rounds, MEMBERS, [9, 9])

    first, _ = on_ranks(2, body)
    assert isinstance(first, RendezvousError) and "rank 1 sent senseless results of probes" in first.what


def test_sizes_to_probe() -> None:
    assert rendezvous.datagram_sizes("10.0.0.1", 1500) == sorted(DATAGRAM_SIZES, reverse=True)
    assert rendezvous.datagram_sizes("10.0.0.1", 1442)[5:8] == [1422, 1414, 1402]
    assert 1442 - 48 in rendezvous.datagram_sizes("fd00::1", 1442)
    assert rendezvous.datagram_sizes("127.0.0.1", 65536) == sorted(DATAGRAM_SIZES, reverse=True)
    assert rendezvous.datagram_sizes("10.0.0.1", 1500, pinned=1300) == [1300]


def test_everybody_takes_over_what_rank_0_says() -> None:
    assert on_ranks(3, lambda rounds: rendezvous.agree(rounds, "crossover", rounds.rank + 7)) == [7, 7, 7]


def test_peers_are_written_for_the_own_interface() -> None:
    members = (Member(0, "fe80::1%eth0", 1, "a"), Member(1, "fe80::2%ens3", 2, "b"))
    assert Membership(1, members).peers("fe80::1%eth0") == [("fe80::1%eth0", 1), ("fe80::2%eth0", 2)]
