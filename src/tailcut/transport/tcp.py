"""An all-gather of bytes over TCP, for groups that bring none of their own: `tcp://host:port`.

Rank 0 listens there, the others call. It carries a few small messages while a group forms and is closed
before the first operation of the user. Every wait has a deadline.
"""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

from tailcut.errors import Facts, RendezvousError
from tailcut.transport import frames, netinfo
from tailcut.transport.frames import GRACE_S, Connection, endpoint_text
from tailcut.transport.listener import Listener

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between attempts to connect
ATTEMPT_S = 5.0  # for one attempt


def parse(address: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port`, with IPv6 hosts in brackets."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise RendezvousError(f"cannot read the address {address!r}: {error}", reason="bad_address") from None
    if parts.scheme != "tcp" or not host or not port or parts.path.strip("/") or parts.query:
        raise RendezvousError(f"{address!r} is no rendezvous address", reason="bad_address")
    return host, port


class TcpAllGather:
    """Joins on construction; then every call gives what all ranks passed in, in order of rank."""

    def __init__(
        self, address: str, *, rank: int, size: int, join_timeout_s: float, round_timeout_s: float
    ) -> None:
        host, port = parse(address)
        self._round_timeout_s = round_timeout_s
        self._end = Listener(host, port, size) if rank == 0 else Caller(host, port, rank, size)
        try:
            self._end.join(join_timeout_s)
        except BaseException:
            self._end.close()
            raise

    def __call__(self, payload: bytes) -> list[bytes]:
        if len(payload) > frames.MAX_BLOB_BYTES:
            raise RendezvousError(f"{len(payload)} bytes are too many for one round")
        return self._end.exchange(payload, self._round_timeout_s)

    def close(self) -> None:
        """Closes all connections. Ranks that still wait for this one are told by their ends of them."""
        self._end.close()


class Caller:
    """The end of a rank other than 0."""

    def __init__(self, host: str, port: int, rank: int, size: int) -> None:
        self._host, self._port, self._rank, self._size = host, port, rank, size
        self._where = endpoint_text(host, port)
        self._connection: Connection | None = None

    def join(self, timeout_s: float) -> None:
        """Calls until rank 0 answers, then waits for its welcome, which comes when all ranks are there."""
        deadline = time.monotonic() + timeout_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                self._connection = self._connect(deadline)
                self._greet(self._connection, deadline + GRACE_S)
                return
            except (OSError, EOFError) as error:
                # Not there yet; or that was the listener of an earlier group, just closed.
                last = str(error) or type(error).__name__
            self.close()
            if time.monotonic() + pause >= deadline:
                what = (
                    f"rank 0 did not answer at {self._where} within {timeout_s:.3g} s (last attempt: {last})"
                )
                raise self._error(what, "no_listener")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _connect(self, deadline: float) -> Connection:
        error: OSError = TimeoutError("no address to try")
        left = deadline - time.monotonic()
        for family, target in netinfo.resolve(self._host, self._port, timeout_s=left):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(max(0.001, min(ATTEMPT_S, deadline - time.monotonic())))
                sock.connect(target)
                if sock.getsockname() == sock.getpeername():  # TCP can meet itself on an ephemeral port
                    raise ConnectionRefusedError("connected to itself")
                return Connection(sock, limit=frames.max_all_bytes(self._size))
            except OSError as failure:
                sock.close()
                error = failure
        raise error

    def _greet(self, connection: Connection, deadline: float) -> None:
        hello = {"tailcut": frames.VERSION, "rank": self._rank, "size": self._size}
        try:
            connection.send(frames.HELLO, json.dumps(hello).encode(), deadline)
            self._expect(frames.WELCOME, connection.receive(deadline))
        except ValueError as error:
            raise self._error(f"{self._where} sent {error}", "bad_message") from None

    def exchange(self, payload: bytes, timeout_s: float) -> list[bytes]:
        """One round."""
        connection = self._connection
        if connection is None:
            raise self._error("the rendezvous is over", "bad_message")
        limit_s = timeout_s + GRACE_S
        deadline = time.monotonic() + limit_s
        try:
            connection.send(frames.DATA, payload, deadline)
            return frames.unpack(self._expect(frames.ALL, connection.receive(deadline)), self._size)
        except TimeoutError:
            raise self._error(f"rank 0 did not answer within {limit_s:.3g} s", "missing_ranks") from None
        except (OSError, EOFError):
            raise self._error("rank 0 left during the rendezvous", "rank_left") from None
        except ValueError as error:
            raise self._error(f"rank 0 sent {error}", "bad_message") from None

    def _expect(self, kind: bytes, frame: tuple[bytes, bytes]) -> bytes:
        got, content = frame
        if got == kind:
            return content
        if got != frames.ERROR:
            raise self._error(f"whoever answered at {self._where} is not our rank 0", "bad_message")
        said = frames.json_object(content)
        ranks = said.get("ranks")
        culprits = tuple(rank for rank in ranks if type(rank) is int) if isinstance(ranks, list) else ()
        what, reason = str(said.get("what", "rank 0 refused without a word")), str(said.get("reason"))
        raise RendezvousError(what, reason=reason, facts=Facts(rank=self._rank, culprits=culprits))

    def _error(self, what: str, reason: str) -> RendezvousError:
        return RendezvousError(what, reason=reason, facts=Facts(rank=self._rank, culprits=(0,)))

    def close(self) -> None:
        """Closes the connection; rank 0 sees the end of it."""
        if self._connection is not None:
            self._connection.sock.close()
            self._connection = None
