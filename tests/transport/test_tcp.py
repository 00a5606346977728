"""The rendezvous gives every rank what all ranks said, or all of them an error that names who is at fault.

Strangers, garbage and wrong claims are shown out and disturb nobody; every wait ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ranks
from tailcut import RendezvousError
from tailcut.transport import frames, listener, tcp
from tailcut.transport.tcp import TcpAllGather


@pytest.fixture
def port() -> Iterator[int]:
    with ranks.reserved_port() as number:
        yield number


@contextlib.contextmanager
def joined(
    port: int, rank: int, size: int, *, join_s: float = 10.0, round_s: float = 10.0, host: str = "127.0.0.1"
) -> Iterator[TcpAllGather]:
    gather = TcpAllGather(
        f"tcp://{host}:{port}", rank=rank, size=size, join_timeout_s=join_s, round_timeout_s=round_s
    )
    try:
        yield gather
    finally:
        gather.close()


def test_rounds_give_everyone_everything(port: int) -> None:
    size = 5

    def body(rank: int) -> list[list[bytes]]:
        with joined(port, rank, size) as gather:
            return [gather(f"{turn}:{rank}".encode() * (1 + rank * 50_000 // size)) for turn in range(3)]

    expected = [
        [f"{turn}:{rank}".encode() * (1 + rank * 50_000 // size) for rank in range(size)] for turn in range(3)
    ]
    assert ranks.run_threads(body, size) == [expected] * size


def test_a_second_group_meets_at_the_same_address(port: int) -> None:
    def body(rank: int) -> list[list[bytes]]:
        said = []
        for turn in range(4):
            with joined(port, rank, 3) as gather:
                said.append(gather(bytes([turn, rank])))
        return said

    assert (
        ranks.run_threads(body, 3) == [[[bytes([turn, rank]) for rank in range(3)] for turn in range(4)]] * 3
    )


def test_ranks_may_come_before_rank_0(port: int) -> None:
    def body(rank: int) -> list[bytes]:
        time.sleep(0.3 if rank == 0 else 0)
        with joined(port, rank, 3) as gather:
            return gather(b"x")

    assert ranks.run_threads(body, 3) == [[b"x"] * 3] * 3


@ranks.needs_ipv6
def test_ipv6_in_brackets() -> None:
    with ranks.reserved_port("::1") as port:

        def body(rank: int) -> list[bytes]:
            with joined(port, rank, 2, host="[::1]") as gather:
                return gather(b"six")

        assert ranks.run_threads(body, 2) == [[b"six"] * 2] * 2


def errors_of(results: list[Any]) -> list[RendezvousError]:
    assert all(isinstance(each, RendezvousError) for each in results), results
    return results


def test_missing_ranks_are_named_on_all_that_came(port: int) -> None:
    def body(rank: int) -> None:
        if rank not in (2, 4):
            with joined(port, rank, 5, join_s=0.6):
                pass

    results = ranks.run_threads(body, 5)
    for rank in (0, 1, 3):
        (error,) = errors_of([results[rank]])
        assert f"ranks 2 and 4 did not come to 127.0.0.1:{port} within 0.6 s" in str(error)
        assert (error.ranks, error.reason, error.facts.rank) == ((2, 4), "missing_ranks", rank)


def test_rank_0_missing(port: int) -> None:
    started = time.monotonic()
    with pytest.raises(RendezvousError) as caught, joined(port, 1, 2, join_s=0.5):
        pass
    assert f"rank 0 did not answer at 127.0.0.1:{port} within 0.5 s" in str(caught.value)
    assert (caught.value.reason, caught.value.ranks) == ("no_listener", (0,))
    assert 0.3 < time.monotonic() - started < 3


def test_a_silent_rank_is_named_in_a_round(port: int) -> None:
    def body(rank: int) -> None:
        with joined(port, rank, 3, round_s=0.4) as gather:
            if rank == 2:
                time.sleep(1.0)
            else:
                gather(b"here")

    first, second, _ = ranks.run_threads(body, 3)
    for error in errors_of([first, second]):
        assert "rank 2 did not answer within 0.4 s" in str(error)
        assert (error.ranks, error.reason) == ((2,), "missing_ranks")


def test_a_rank_that_leaves_is_named(port: int) -> None:
    def body(rank: int) -> None:
        with joined(port, rank, 3) as gather:
            if rank != 1:
                gather(b"here")

    first, _, third = ranks.run_threads(body, 3)
    for error in errors_of([first, third]):
        assert "rank 1 left during the rendezvous" in str(error)
        assert (error.ranks, error.reason) == ((1,), "rank_left")


def test_rank_0_leaves(port: int) -> None:
    def body(rank: int) -> None:
        with joined(port, rank, 2) as gather:
            if rank != 0:
                gather(b"here")

    _, second = ranks.run_threads(body, 2)
    (error,) = errors_of([second])
    assert "rank 0 left during the rendezvous" in str(error)


def speak(port: int, content: bytes, *, close: bool = False) -> socket.socket:
    deadline = time.monotonic() + 5
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=5)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    sock.sendall(content)
    if close:
        sock.close()
    return sock


def hello(**said: Any) -> bytes:
    content = json.dumps(said).encode()
    return struct.pack("!cI", b"H", len(content)) + content


STRANGERS = {
    "nothing": b"",
    "half a header": b"H\x00",
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge length": struct.pack("!cI", b"H", 2**32 - 1),
    "no JSON": struct.pack("!cI", b"H", 4) + b"\xff\xfe{[",
    "no object": struct.pack("!cI", b"H", 2) + b"[]",
    "deep JSON": struct.pack("!cI", b"H", 1000) + b"[" * 1000,
    "another version": hello(tailcut=99, rank=1, size=3),
    "another size": hello(tailcut=1, rank=1, size=4),
    "a text for a rank": hello(tailcut=1, rank="1", size=3),
    "a truth for a rank": hello(tailcut=1, rank=True, size=3),
    "rank 0": hello(tailcut=1, rank=0, size=3),
    "a negative rank": hello(tailcut=1, rank=-1, size=3),
    "a rank too large": hello(tailcut=1, rank=3, size=3),
    "data at once": struct.pack("!cI", b"D", 3) + b"abc",
}


@pytest.mark.parametrize("close", [False, True], ids=["stays", "leaves"])
@pytest.mark.parametrize("content", STRANGERS.values(), ids=STRANGERS.keys())
def test_strangers_disturb_nobody(port: int, content: bytes, close: bool) -> None:
    def body(rank: int) -> list[bytes]:
        if rank == 2:  # the others only come together after the stranger has spoken
            with contextlib.closing(speak(port, content, close=close)), joined(port, rank, 3) as gather:
                return gather(b"2")
        with joined(port, rank, 3) as gather:
            return gather(str(rank).encode())

    assert ranks.run_threads(body, 3) == [[b"0", b"1", b"2"]] * 3


def test_a_wrong_size_is_told_at_once_and_remembered(port: int) -> None:
    def body(rank: int) -> None:
        with joined(port, rank, 2 + (rank == 1), join_s=1.0):
            pass

    first, second = errors_of(ranks.run_threads(body, 2))
    assert "rank 1 was started with size 3, rank 0 with size 2" in str(second)
    assert second.reason == "refused"
    assert "rank 1 did not come" in str(first) and "started with size 3" in str(first)


def test_two_processes_that_claim_one_rank(port: int) -> None:
    come = threading.Event()

    def body(index: int) -> list[bytes]:
        rank = (0, 1, 1, 2)[index]
        if index == 2:
            time.sleep(0.3)
        if index == 3:
            come.wait(5)
        try:
            with joined(port, rank, 3) as gather:
                return gather(str(index).encode())
        finally:
            come.set()

    results = ranks.run_threads(body, 4)
    (error,) = errors_of([results[2]])
    assert "rank 1 has joined already: two processes claim it" in str(error)
    assert [results[0], results[1], results[3]] == [[b"0", b"1", b"3"]] * 3


def test_a_rank_that_restarts_before_the_others_came(port: int) -> None:
    def body(rank: int) -> list[bytes]:
        if rank == 1:
            speak(port, hello(tailcut=1, rank=1, size=3)).close()  # its first life
            time.sleep(0.2)
        if rank == 2:
            time.sleep(0.6)
        with joined(port, rank, 3) as gather:
            return gather(str(rank).encode())

    assert ranks.run_threads(body, 3) == [[b"0", b"1", b"2"]] * 3


def test_a_silent_connection_is_shown_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HELLO_DEADLINE_S", 0.2)

    def body(rank: int) -> Any:
        if rank == 1:
            with contextlib.closing(speak(port, b"H")) as sock:
                sock.settimeout(5)
                said = sock.recv(4096)
            with joined(port, 1, 2):
                return said
        with joined(port, 0, 2):
            return None

    _, said = ranks.run_threads(body, 2)
    assert b"it said nothing for" in said


def test_a_flood_of_connections_is_bounded(port: int) -> None:
    held: list[socket.socket] = []

    def body(rank: int) -> list[bytes]:
        if rank == 1:
            held.extend(speak(port, b"") for _ in range(listener.MAX_STRANGERS + 20))
            time.sleep(0.2)
            for sock in held[:40]:
                sock.close()
            time.sleep(0.2)
        with joined(port, rank, 2) as gather:
            return gather(b"x")

    assert ranks.run_threads(body, 2) == [[b"x"] * 2] * 2
    for sock in held:
        sock.close()


def test_a_message_too_long_for_a_round(port: int) -> None:
    def body(rank: int) -> None:
        with joined(port, rank, 2) as gather:
            gather(b"x" * (frames.MAX_BLOB_BYTES + (rank == 1)))

    first, second = errors_of(ranks.run_threads(body, 2))
    assert "too many for one round" in str(second)
    assert "rank 1 left" in str(first)


def test_garbage_instead_of_data_in_a_round(port: int) -> None:
    def body(rank: int) -> Any:
        if rank == 1:
            with contextlib.closing(speak(port, hello(tailcut=1, rank=1, size=2))) as sock:
                sock.settimeout(5)
                sock.recv(5)  # the welcome
                sock.sendall(struct.pack("!cI", b"D", 2**30))
                return sock.recv(4096)
        with joined(port, 0, 2) as gather:
            return gather(b"x")

    error, said = ranks.run_threads(body, 2)
    assert isinstance(error, RendezvousError) and "rank 1 sent a frame of 1073741824 bytes" in str(error)
    assert b"bad_message" in said


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        struct.pack("!cI", b"W", 2**31),
        struct.pack("!cI", b"A", 0),
        b"W\x00\x00\x00\x00" + struct.pack("!cI", b"A", 3) + b"abc",
        b"W\x00\x00\x00\x00" + struct.pack("!cII", b"A", 4, 0),
        b"W\x00\x00\x00\x00" + struct.pack("!cI", b"Z", 0),
    ],
)
def test_an_impostor_of_rank_0(port: int, answer: bytes) -> None:
    served = listener._listen("127.0.0.1", port, 1)
    served.setblocking(True)

    def body(rank: int) -> Any:
        if rank == 0:
            sock, _ = served.accept()
            with sock:
                sock.sendall(answer)
                time.sleep(0.3)
            return None
        with joined(port, 1, 2, join_s=1.0, round_s=0.5) as gather:
            return gather(b"x")

    _, error = ranks.run_threads(body, 2)
    served.close()
    errors_of([error])
    assert error.reason in ("bad_message", "no_listener")


def test_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError) as caught, joined(port, 0, 2):
            pass
    assert f"rank 0 cannot listen at 127.0.0.1:{port}: Address already in use" in str(caught.value)
    assert caught.value.reason == "socket"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("tcp://127.0.0.1:29511", "127.0.0.1", 29511),
        ("tcp://node-0.cluster:1", "node-0.cluster", 1),
        ("tcp://[fd00::1]:80", "fd00::1", 80),
        ("tcp://h:65535/", "h", 65535),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    assert tcp.parse(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    ["", "tcp://", "tcp://host", "tcp://:80", "udp://h:1", "h:1", "tcp://h:0", "tcp://h:65536", "tcp://h:x",
     "tcp://fd00::1:80:x", "tcp://[fd00::1:80", "tcp://h:1/path", "tcp://h:1?q=1"],
)  # fmt: skip
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(RendezvousError) as caught:
        tcp.parse(address)
    assert caught.value.reason == "bad_address"
    assert repr(address) in str(caught.value)
