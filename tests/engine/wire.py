"""Packets for tests that forge them, written after docs/reference/wire.md; no code of the engine is used."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum

GROUP = 7  # of every virtual network
HEADER_BYTES = 24
VERSION = 1
WHOLE_OPERATION = 65535  # transfer number of an entry that speaks of the operation


class Kind(IntEnum):
    DATA = 1
    ENTER = 2
    REPORT = 3
    PING = 4
    FAIL = 5
    BYE = 6
    PROBE = 7
    PROBE_ACK = 8


@dataclass(frozen=True)
class Packet:
    """A header and a body."""

    kind: int = Kind.DATA
    source: int = 0
    group: int = GROUP
    version: int = VERSION
    flags: int = 0
    incast: int = 0
    sequence: int = 0
    tag: int = 0
    transfer: int = 0
    offset: int = 0
    timeout: int = 0
    stamp: int = 0
    path: int = 0
    body: bytes = b""

    def encode(self) -> bytes:
        word = self.offset | self.timeout << 24
        first = (self.version << 4 | self.kind, self.flags << 4 | self.incast)
        rest = (self.sequence, self.tag, self.transfer, word, self.stamp, self.path)
        return struct.pack("<BBHIIHHIHH", *first, self.source, self.group, *rest) + self.body

    @staticmethod
    def decode(data: bytes) -> Packet:
        first, second, source, group, sequence, tag, transfer, word, stamp, path = struct.unpack_from(
            "<BBHIIHHIHH", data
        )
        return Packet(
            first & 15, source, group, first >> 4, second >> 4, second & 15, sequence, tag, transfer,
            word & 0xFFFFFF, word >> 24, stamp, path, data[HEADER_BYTES:],
        )  # fmt: skip

    def but(self, **changes: object) -> bytes:
        """Encoded, with some fields changed."""
        return replace(self, **changes).encode()  # type: ignore[arg-type]


def is_data(data: bytes) -> bool:
    return data[0] & 15 == Kind.DATA


def fingerprint(collective: int, dtype: int, op: int, family: int, count: int) -> bytes:
    return struct.pack("<BBBBIQ", collective, dtype, op, family, 0, count)


def report(
    entries: bytes = b"",
    count: int = 0,
    *,
    largest: int = 0,
    received: int = 0,
    stamp: int = 0,
    hold_us: int = 0,
) -> bytes:
    """The body of a report with a window of 64 KiB."""
    window_kib = 64
    words = (largest, received, stamp, hold_us | (window_kib & 0xFF) << 24, window_kib >> 8, count, 0)
    return struct.pack("<IIHIHHH", *words) + entries


def entry(
    sequence: int,
    transfer: int,
    *,
    tag: int = 0,
    flags: int = 0,
    prefix: int = 0,
    high: int = 0,
    ranges: tuple[tuple[int, int], ...] = (),
    claimed: int | None = None,
) -> bytes:
    """One entry of a report; `claimed`: how many ranges it says it has."""
    told = len(ranges) if claimed is None else claimed
    head = struct.pack("<IHHBBII", sequence, tag, transfer, flags, told, prefix, high)
    return head + b"".join(struct.pack("<IH", *each) for each in ranges)


def ping(keys: list[tuple[int, int, int]], claimed: int | None = None) -> bytes:
    """The body of a ping about (sequence, tag, transfer) each."""
    body = b"".join(struct.pack("<IHH", *key) for key in keys)
    return struct.pack("<H", len(keys) if claimed is None else claimed) + body


def fail(code: int, scope: int, culprit: int) -> bytes:
    return struct.pack("<BBH", code, scope, culprit) + bytes(32)
