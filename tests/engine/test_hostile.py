"""Packets that lie: every one is counted under a reason, none crashes a rank, hangs it or changes a value.

What carries the right addresses and a well-formed payload in place of a real packet cannot be told from it
before packets are authenticated (SECURITY.md), so no test here forges that, nor a Fail or Bye.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import wire
from engine.virtual import MS, SECOND, US, Op, Started, Virtual
from engine.wire import HEADER_BYTES, Kind, Packet
from group.reference import same_bits

SIZE = 3
PAYLOAD = 1448
COUNT = 60_000
TIMES = 5  # how often each lie is told
VICTIM, LIAR = 0, 1  # datagrams come to rank 0 from the address of rank 1
NEVER_SENT = 60_000  # a packet index no transfer here has


def running(seed: int = 0, loss: float = 0.0) -> tuple[Virtual, list[Started]]:
    """An operation that is done (sequence 0), and one in the middle of it (sequence 1)."""
    virtual = Virtual(SIZE, PAYLOAD, seed, network={"rate": 125e6, "loss": loss})
    virtual.net.capture(True)
    virtual.start_all(Op(100))
    virtual.finish(5 * SECOND)
    started = virtual.start_all(Op(COUNT, salt=1), timeout_ns=30 * SECOND)
    virtual.run(1 * MS)
    return virtual, started


def drops(virtual: Virtual, rank: int = VICTIM) -> dict[str, int]:
    return {k: v for k, v in virtual.net.counters(rank).items() if k.startswith("dropped_")}


def check_right(virtual: Virtual, started: list[Started]) -> None:
    virtual.finish(60 * SECOND)
    for one in started:
        assert one.code == "none", one.result
        assert same_bits(one.output, one.op.expected(virtual.size)[one.rank])
    assert virtual.settle(10 * SECOND)


@dataclass(frozen=True)
class Lie:
    reason: str  # the counter without "dropped_"
    datagram: bytes
    source: int = LIAR


DATA = Packet(Kind.DATA, LIAR, sequence=1, transfer=0, path=0, body=bytes(PAYLOAD))
ENTER = Packet(Kind.ENTER, LIAR, sequence=1, body=wire.fingerprint(0, 0, 0, 1, COUNT))
REPORT = Packet(Kind.REPORT, LIAR, body=wire.report())
PING = Packet(Kind.PING, LIAR, body=wire.ping([(1, 0, 0)]))
FAIL = Packet(Kind.FAIL, LIAR, sequence=1, body=wire.fail(3, 0, LIAR))


def told(body: bytes, count: int = 1) -> bytes:
    return REPORT.but(body=wire.report(body, count))


LIES = {
    "nothing": Lie("malformed", b""),
    "one byte": Lie("malformed", b"\x11"),
    "half a header": Lie("malformed", DATA.encode()[:12]),
    "a header but for a byte": Lie("malformed", DATA.encode()[: HEADER_BYTES - 1]),
    "version 0": Lie("malformed", DATA.but(version=0)),
    "version 2": Lie("malformed", DATA.but(version=2)),
    "kind 0": Lie("malformed", DATA.but(kind=0)),
    "kind 9": Lie("malformed", DATA.but(kind=9)),
    "kind 15": Lie("malformed", DATA.but(kind=15)),
    "another's number": Lie("malformed", DATA.but(source=2)),
    "the victim's number": Lie("malformed", DATA.but(source=VICTIM)),
    "the victim's address": Lie("malformed", DATA.but(source=VICTIM), VICTIM),
    "a rank that is not": Lie("malformed", DATA.but(source=SIZE), SIZE),
    "rank 65535": Lie("malformed", DATA.but(source=65535), 65535),
    "an old epoch": Lie("wrong_group", DATA.but(group=6)),
    "group 0": Lie("wrong_group", ENTER.but(group=0)),
    "an old epoch's failure": Lie("wrong_group", FAIL.but(group=8)),
    "unknown transfer": Lie("unexpected", DATA.but(transfer=9)),
    "the reserved transfer": Lie("unexpected", DATA.but(transfer=65535)),
    "offset beyond the end": Lie("malformed", DATA.but(offset=NEVER_SENT)),
    "the greatest offset": Lie("malformed", DATA.but(offset=0xFFFFFF)),
    "no payload": Lie("malformed", DATA.but(body=b"")),
    "payload too short": Lie("malformed", DATA.but(body=bytes(PAYLOAD - 1))),
    "payload too long": Lie("malformed", DATA.but(body=bytes(PAYLOAD + 1))),
    "payload far too long": Lie("malformed", DATA.but(body=bytes(65_000))),
    "an operation that is over": Lie("stale", DATA.but(sequence=0)),
    "payload too long, early": Lie("stash_full", DATA.but(sequence=2, body=bytes(PAYLOAD + 1))),
    "data of the far future": Lie("early_full", DATA.but(sequence=2**32 - 1)),
    "an entry to the far future": Lie("early_full", ENTER.but(sequence=2**31)),
    "a short announcement": Lie("malformed", ENTER.but(body=ENTER.body[:-1])),
    "a long announcement": Lie("malformed", ENTER.but(body=ENTER.body + b"x")),
    "an empty report": Lie("malformed", REPORT.but(body=b"")),
    "a short report": Lie("malformed", REPORT.but(body=REPORT.body[:-1])),
    "a report of what was never sent": Lie("malformed", REPORT.but(body=wire.report(largest=2**31 - 1))),
    "entries that are not there": Lie("malformed", told(b"", 1)),
    "65535 entries": Lie("malformed", told(b"", 65535)),
    "half an entry": Lie("malformed", told(wire.entry(1, 0)[:9])),
    "ranges that are not there": Lie("malformed", told(wire.entry(1, 0, claimed=1))),
    "255 ranges": Lie("malformed", told(wire.entry(1, 0, high=1, ranges=((0, 1),), claimed=255))),
    "prefix above high": Lie("malformed", told(wire.entry(1, 0, prefix=2, high=1))),
    "more than was sent": Lie("malformed", told(wire.entry(1, 0, high=NEVER_SENT))),
    "the greatest numbers": Lie("malformed", told(wire.entry(1, 0, prefix=2**32 - 1, high=2**32 - 1))),
    "a range above high": Lie("malformed", told(wire.entry(1, 0, high=2, ranges=((2, 1),)))),
    "a range across high": Lie("malformed", told(wire.entry(1, 0, high=2, ranges=((1, 65535),)))),
    "an entry of an unknown transfer": Lie("unexpected", told(wire.entry(1, 77))),
    "a ping without count": Lie("malformed", PING.but(body=b"")),
    "a ping that counts too much": Lie("malformed", PING.but(body=wire.ping([(1, 0, 0)], claimed=65535))),
    "a ping that counts too little": Lie("malformed", PING.but(body=wire.ping([(1, 0, 0)], claimed=0))),
    "failure number 0": Lie("malformed", FAIL.but(body=wire.fail(0, 0, LIAR))),
    "failure number 7": Lie("malformed", FAIL.but(body=wire.fail(7, 0, LIAR))),
    "failure number 255": Lie("malformed", FAIL.but(body=wire.fail(255, 1, LIAR))),
    "a short failure": Lie("malformed", FAIL.but(body=FAIL.body[:-1])),
    "a long failure": Lie("malformed", FAIL.but(body=FAIL.body + b"x")),
}


@pytest.mark.parametrize("what", LIES)
def test_every_lie_is_counted_and_harmless(what: str) -> None:
    lie = LIES[what]
    virtual, started = running()
    before = drops(virtual)
    for _ in range(TIMES):
        virtual.net.inject(VICTIM, lie.source, lie.datagram)
        virtual.run(100 * US)
    check_right(virtual, started)
    counted = {name: now - before[name] for name, now in drops(virtual).items() if now != before[name]}
    assert counted == {f"dropped_{lie.reason}": TIMES}


def test_the_table_knows_the_truth() -> None:
    """The packets that the lies are made of are themselves taken: nothing is dropped as malformed."""
    virtual, started = running()
    before = drops(virtual)
    for packet in (ENTER, REPORT, PING):
        virtual.net.inject(VICTIM, LIAR, packet.encode())
    check_right(virtual, started)
    assert drops(virtual) == before


def test_noise_is_counted_to_the_last_datagram() -> None:
    draw = random.Random(1)
    virtual, started = running()
    before = sum(drops(virtual).values())
    for _ in range(3000):
        noise = bytearray(draw.randbytes(draw.choice((0, 1, 23, 24, 25, 60, 1472, 9000))))
        if noise and noise[0] >> 4 == wire.VERSION:
            noise[0] ^= 0x80
        virtual.net.inject(VICTIM, draw.randrange(5), bytes(noise))
    check_right(virtual, started)
    assert sum(drops(virtual).values()) - before == 3000


def test_an_old_epoch_comes_back() -> None:
    """All packets of an earlier group, on the same ports, while the new one works."""
    old, _ = running(seed=1)
    old.finish(5 * SECOND)
    virtual, started = running(seed=2)
    packets = [(to, source, Packet.decode(data)) for _, source, to, data in old.net.take_captured()]
    for to, source, packet in packets:
        virtual.net.inject(to, source, packet.but(group=6))
    check_right(virtual, started)
    assert virtual.total("dropped_wrong_group") == len(packets)


@pytest.mark.parametrize("stash_bytes", [10_000, 1 << 20])
def test_a_flood_of_early_packets_is_bounded(stash_bytes: int) -> None:
    """Announcements and data of operations that never start: the stash fills, operations still come right."""
    virtual = Virtual(SIZE, PAYLOAD, options={"stash_bytes": stash_bytes}, network={"rate": 125e6})
    for sequence in range(10, 5010):
        virtual.net.inject(VICTIM, LIAR, DATA.but(sequence=sequence, tag=5))
        virtual.net.inject(VICTIM, LIAR, ENTER.but(sequence=sequence, tag=6))
    virtual.run(SECOND)
    counted = drops(virtual)
    room = 4096  # operations that may be entered before us
    kept = min(stash_bytes // PAYLOAD, room)
    assert counted["dropped_stash_full"] + counted["dropped_early_full"] >= 2 * 5000 - kept - room
    started = []
    for rank in (1, 2, 0):  # the victim comes last: what the others send at once finds no room
        started += [virtual.start(rank, Op(count, salt=count)) for count in (10, 1000, COUNT)]
        virtual.run(50 * MS)
    check_right(virtual, started)


Mutation = Callable[[random.Random, bytearray], None]


def truncate(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data)) :]


def extend(draw: random.Random, data: bytearray) -> None:
    data += draw.randbytes(draw.choice((1, 8, 2000)))


def flip(draw: random.Random, data: bytearray) -> None:
    for _ in range(draw.choice((1, 1, 3, 20))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def flip_head(draw: random.Random, data: bytearray) -> None:
    data[draw.randrange(min(len(data), 64))] ^= 1 << draw.randrange(8)


def overwrite(draw: random.Random, data: bytearray) -> None:
    width = draw.choice((1, 2, 4, 8))
    at = draw.randrange(max(1, min(len(data), 90) - width))
    number = draw.choice((0, 1, 2**63, 2**31, 2**16 - 1, 2**64 - 1, draw.randrange(2**64)))
    data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")


def unchanged(draw: random.Random, data: bytearray) -> None:
    """A plain replay."""


MUTATIONS: tuple[Mutation, ...] = (truncate, extend, flip, flip_head, overwrite, unchanged)


def passes_for_real(original: bytes, mutated: bytes) -> bool:
    """Whether this is a well-formed data packet with other content: nobody can tell it from the real one."""
    if len(mutated) < HEADER_BYTES or not wire.is_data(mutated):
        return False
    if not wire.is_data(original):
        return True
    was, now = Packet.decode(original), Packet.decode(mutated)
    same_place = (was.sequence, was.tag, was.transfer, was.offset) == (
        now.sequence, now.tag, now.transfer, now.offset,
    )  # fmt: skip
    return not same_place or was.body != now.body


def mangle(seed: int) -> None:
    """Mangled copies of the run's own packets come between them, from the right addresses."""
    draw = random.Random(seed)
    virtual = Virtual(SIZE, draw.choice((512, PAYLOAD)), seed, network={"rate": 125e6, "loss": 0.02})
    virtual.net.capture(True)
    sent: list[tuple[int, int, bytes]] = []
    families = ("ring", "transpose", "small")
    for rank in virtual.ranks:
        for salt, count in enumerate((10, 3000, 40_000)):
            op = Op(count, families[(seed + salt) % 3], salt=salt, tag=salt % 2)
            virtual.start(rank, op, timeout_ns=3 * SECOND)
    while virtual.pending():
        virtual.run(draw.choice((50 * US, 200 * US, 50 * MS)))
        sent += [(source, to, data) for _, source, to, data in virtual.net.take_captured()]
        for source, to, original in draw.choices(sent, k=8):
            data = bytearray(original)
            draw.choice(MUTATIONS)(draw, data)
            if not passes_for_real(original, bytes(data)):
                virtual.net.inject(to, source, bytes(data))
    for one in (one for rank in virtual.ranks for one in virtual.started[rank]):
        if one.code == "none":
            assert same_bits(one.output, one.op.expected(SIZE)[one.rank]), f"wrong value: {one.op}"
        assert (one.result or {})["elapsed_ns"] <= 3100 * MS
    virtual.settle(10 * SECOND)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_mangled_packets_never_give_a_wrong_value(seed: int) -> None:
    mangle(seed)


@pytest.mark.parametrize("loss", [0, 0.02])
def test_replayed_reports_and_announcements_change_nothing(loss: float) -> None:
    """Every control packet so far comes again every millisecond: repairs stay in proportion."""
    virtual, started = running(seed=3, loss=loss)
    sent: list[tuple[int, int, bytes]] = []
    for _ in range(20):
        virtual.run(1 * MS)
        sent += [(s, to, data) for _, s, to, data in virtual.net.take_captured() if not wire.is_data(data)]
        for source, to, data in sent:
            virtual.net.inject(to, source, data)
    check_right(virtual, started)
    lost = virtual.net.dropped_data
    assert virtual.total("data_resent") <= lost + 0.2 * virtual.total("data_sent")
    assert virtual.total("dropped_malformed") == 0


def test_a_forged_path_number_does_not_silence_the_path() -> None:
    """One duplicate whose path number lies ahead; the next operation must not pay for it."""
    for ahead in (100, 5000, 20_000, 32_767):
        virtual, started = running(seed=4)
        check_right(virtual, started)
        captured = [Packet.decode(data) for _, source, to, data in virtual.net.take_captured()
                    if (source, to) == (LIAR, VICTIM) and wire.is_data(data)]  # fmt: skip
        forged = replace(captured[-1], path=(captured[-1].path + ahead) % 2**16)
        virtual.net.inject(VICTIM, LIAR, forged.encode())
        virtual.run(10 * MS)
        check_right(virtual, virtual.start_all(Op(3 * COUNT), timeout_ns=10 * SECOND))


def test_a_replay_after_the_path_number_wrapped() -> None:
    """Genuine packets so old that their 16-bit path number reads as one of the future."""
    virtual = Virtual(2, 512)
    virtual.net.capture(True)
    virtual.start_all(Op(20_000, "ring"))
    virtual.finish(5 * SECOND)
    old = [(to, source, data) for _, source, to, data in virtual.net.take_captured() if wire.is_data(data)]
    virtual.net.capture(False)
    virtual.start_all(Op(128 * 40_000, "ring"))
    virtual.finish(20 * SECOND)
    assert virtual.net.peer(0, 1)["packets_sent"] > 2**15 + len(old)
    for to, source, data in old:
        virtual.net.inject(to, source, data)
    virtual.run(10 * MS)
    check_right(virtual, virtual.start_all(Op(500_000, "ring"), timeout_ns=20 * SECOND))
