"""Frames on a TCP connection of the rendezvous: one byte of kind, four bytes of length (big-endian), content.

Nothing a connection says is trusted: a length is checked before memory is taken for it.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, cast

VERSION = 1
HELLO, WELCOME, DATA, ALL, ERROR = b"H", b"W", b"D", b"A", b"E"
_HEAD = struct.Struct("!cI")
_LENGTH = struct.Struct("!I")
MAX_HELLO_BYTES = 1024
MAX_BLOB_BYTES = 2**20  # what one rank may say in one round
GRACE_S = 2.0  # how much longer than rank 0 the others wait: its error knows more and shall come first


def max_all_bytes(size: int) -> int:
    """The longest answer to a round, also the longest error."""
    return min(2**28, 4096 + size * (MAX_BLOB_BYTES + _LENGTH.size))


@dataclass(eq=False)
class Connection:
    """One TCP connection and what has come of its next frame."""

    sock: socket.socket
    limit: int  # bytes: the longest frame it may send now
    rank: int | None = None  # known after its hello
    since: float = field(default_factory=time.monotonic)
    buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, kind: bytes, content: bytes, deadline: float) -> None:
        """Sends one frame; a TimeoutError at the deadline."""
        self.sock.settimeout(max(0.001, deadline - time.monotonic()))  # sendall takes it as a total
        self.sock.sendall(_HEAD.pack(kind, len(content)) + content)

    def fill(self) -> None:
        """Reads what has come; an EOFError at the end of the connection."""
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError("the connection was closed")
        self.buffer += piece

    def frame(self) -> tuple[bytes, bytes] | None:
        """Takes one whole frame out of the buffer, if it is there. A ValueError when it is too long."""
        if len(self.buffer) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack_from(self.buffer)
        if length > self.limit:
            raise ValueError(f"a frame of {length} bytes where {self.limit} are allowed")
        end = _HEAD.size + length
        if len(self.buffer) < end:
            return None
        content = bytes(self.buffer[_HEAD.size : end])
        del self.buffer[:end]
        return kind, content

    def receive(self, deadline: float) -> tuple[bytes, bytes]:
        """Waits for one whole frame; a TimeoutError at the deadline."""
        while (frame := self.frame()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            self.fill()
        return frame


def endpoint_text(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def json_object(content: bytes) -> dict[str, Any]:
    """A JSON object, or an empty one where the bytes are anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def error_content(what: str, reason: str, ranks: list[int]) -> bytes:
    """The content of an ERROR frame."""
    return json.dumps({"what": what, "reason": reason, "ranks": ranks}).encode()


def pack(blobs: list[bytes]) -> bytes:
    """The content of an ALL frame."""
    return b"".join(_LENGTH.pack(len(blob)) + blob for blob in blobs)


def unpack(content: bytes, size: int) -> list[bytes]:
    """The blobs of an ALL frame; a ValueError when they are not exactly `size`."""
    blobs: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(content) and len(blobs) < size:
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        blobs.append(content[at : at + length])
        at += length
    if len(blobs) != size or at != len(content):
        raise ValueError(f"a round that does not hold what {size} ranks said")
    return blobs
