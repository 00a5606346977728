"""One host's members of a ring of TCP connections, which sends messages round and round without end.

    python -m tailcut.lab.ring '{"side": 0, "members": 4, "addresses": [...], ...}'

Members with even numbers are on side 0, odd ones on side 1, so every connection crosses the network. A
member sends a message to the next and takes one from the one before it; when both are done it goes on to the
next message: what the processes of a ring AllReduce do. All members of a host share this process.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import random
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from tailcut.lab.bursts import Bursts
from tailcut.lab.timers import precise_timers

CONNECT_TIMEOUT_S = 20.0
BLOCK_BYTES = 262_144
PACED_BLOCK_BYTES = 8_192  # 0.7 ms at 100 Mbit/s: a paced stream is smooth beside an operation
NOTSENT_BYTES = 65_536  # what TCP may hold back unsent: more of it would go on after the end of a burst
PACING_CREDIT_NS = 2_000_000  # what was not used is lost: no bursts above the rate


@dataclass(frozen=True, slots=True)
class Settings:
    side: int
    members: int
    addresses: tuple[str, str]
    port: int  # member m listens on port + m
    message_bytes: int
    on_ms: float
    off_ms: float
    rate_mbit: float | None
    seed: int
    counter: int  # file: eight bytes, how much the members here have received


class Member:
    def __init__(self, outgoing: socket.socket, incoming: socket.socket, message_bytes: int) -> None:
        self.outgoing, self.incoming = outgoing, incoming
        self._message_bytes = message_bytes
        self._sent = self._received = 0
        self._goal = message_bytes
        self._listens = False

    def listen_for_room(self, selector: selectors.BaseSelector, wants: bool) -> None:
        """Only sockets that may be written to are in the selector, or it would never wait."""
        wants = wants and self.room() > 0
        if wants and not self._listens:
            selector.register(self.outgoing, selectors.EVENT_WRITE, self)
        elif self._listens and not wants:
            selector.unregister(self.outgoing)
        self._listens = wants

    def room(self) -> int:
        """Bytes of the current message that are still to send."""
        return self._goal - self._sent

    def sent(self, count: int) -> None:
        self._sent += count
        self._step()

    def received(self, count: int) -> None:
        self._received += count
        self._step()

    def _step(self) -> None:
        while min(self._sent, self._received) >= self._goal:
            self._goal += self._message_bytes


def connect(settings: Settings) -> list[Member]:
    """Listens, says so, and when told to connects to the next members on the other side."""
    mine = range(settings.side, settings.members, 2)
    here, there = settings.addresses[settings.side], settings.addresses[1 - settings.side]
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    servers = [socket.create_server((here, settings.port + member), family=family) for member in mine]
    print("ready", flush=True)
    begin_ns = int(sys.stdin.readline())
    outgoing = [
        socket.create_connection(
            (there, settings.port + (member + 1) % settings.members), timeout=CONNECT_TIMEOUT_S
        )
        for member in mine
    ]
    members = []
    for server, connection in zip(servers, outgoing, strict=True):
        server.settimeout(CONNECT_TIMEOUT_S)
        accepted, _ = server.accept()
        server.close()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOTSENT_BYTES)
        for end in (connection, accepted):
            end.setblocking(False)
        members.append(Member(connection, accepted, settings.message_bytes))
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) * 1e-9))
    return members


class Pace:
    """When the next block may go: a token bucket with almost no depth."""

    def __init__(self, rate_mbit: float | None) -> None:
        self._ns_per_byte = 8e3 / rate_mbit if rate_mbit else 0.0
        self._next_ns = 0.0
        self.block_bytes = PACED_BLOCK_BYTES if rate_mbit else BLOCK_BYTES

    def wait_ns(self, now_ns: int) -> int:
        return round(self._next_ns) - now_ns

    def spend(self, count: int, now_ns: int) -> None:
        self._next_ns = max(self._next_ns, now_ns - PACING_CREDIT_NS) + count * self._ns_per_byte


def run(settings: Settings, members: list[Member], count: memoryview) -> None:
    """Until the process is ended, or the other side's is."""
    bursts = Bursts(settings.on_ms, settings.off_ms, settings.seed)
    pace = Pace(settings.rate_mbit)
    begin_ns = time.monotonic_ns()
    block, target = bytes(pace.block_bytes), bytearray(BLOCK_BYTES)
    selector = selectors.DefaultSelector()
    for member in members:
        selector.register(member.incoming, selectors.EVENT_READ, member)
    while True:
        now = time.monotonic_ns()
        edge_ns, on = bursts.next_edge_ns(now - begin_ns) if settings.on_ms else (now + 10**9, True)
        wait_ns = pace.wait_ns(now) if on else begin_ns + edge_ns - now
        for member in members:
            member.listen_for_room(selector, on and wait_ns <= 0)
        ready = selector.select(1.0 if wait_ns <= 0 else min(1.0, wait_ns * 1e-9))
        random.shuffle(ready)  # who is first gets the rest of the pace's credit
        for key, events in ready:
            if events & selectors.EVENT_READ:
                got = key.data.incoming.recv_into(target)
                if not got:
                    return
                key.data.received(got)
                count[0] += got
            elif pace.wait_ns(now) <= 0:
                sent = key.data.outgoing.send(block[: min(len(block), key.data.room())])
                key.data.sent(sent)
                pace.spend(sent, now)


def main(text: str) -> None:
    values: dict[str, Any] = json.loads(text)
    values["addresses"] = tuple(values["addresses"])
    settings = Settings(**values)
    precise_timers()
    count = memoryview(mmap.mmap(settings.counter, 8)).cast("Q")
    with contextlib.suppress(ConnectionError):  # the other side has ended
        run(settings, connect(settings), count)


if __name__ == "__main__":
    main(sys.argv[1])
