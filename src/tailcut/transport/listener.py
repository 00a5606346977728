"""Rank 0's end of the TCP rendezvous: accepts the others, then collects and hands out in every round.

Who does not speak our language, or claims what cannot be, is shown out without disturbing the others; what
was wrong with them stands in the error, should ranks be missing in the end.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections.abc import Sequence
from typing import NoReturn

from tailcut.errors import Facts, RendezvousError, ranks_text
from tailcut.transport import frames, netinfo
from tailcut.transport.frames import Connection, endpoint_text

log = logging.getLogger("tailcut.transport.listener")

HELLO_DEADLINE_S = 5.0  # a connection that says nothing for so long is none of ours
MAX_STRANGERS = 64  # connections beyond the group's size that may be open at once


class Listener:
    """The listening socket and the connections of the other ranks."""

    def __init__(self, host: str, port: int, size: int) -> None:
        self._size = size
        self._where = endpoint_text(host, port)
        self._joined: dict[int, Connection] = {}
        self._strangers: set[Connection] = set()  # connected, but not yet admitted as a rank
        self._refused: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._listening = _listen(host, port, backlog=size + MAX_STRANGERS)
        self._selector.register(self._listening, selectors.EVENT_READ, None)

    # ---- joining

    def join(self, timeout_s: float) -> None:
        """Waits until all ranks are here, then closes the listening socket and welcomes them."""
        deadline = time.monotonic() + timeout_s
        while len(self._joined) < self._size - 1:
            if time.monotonic() >= deadline:
                self._give_up_joining(timeout_s)
            self._drop_silent()
            for connection in self._ready(min(deadline, time.monotonic() + 1.0)):
                if connection is None:
                    self._accept()
                else:
                    self._hear(connection)
        # No listener from here on: ranks that already form the next group must not meet this one's.
        self._selector.unregister(self._listening)
        self._listening.close()
        for stranger in list(self._strangers):
            self._show_out(stranger, "all ranks have joined already", "refused")
        for connection in self._joined.values():
            self._send(connection, frames.WELCOME, b"", time.monotonic() + frames.GRACE_S)

    def _ready(self, until: float) -> list[Connection | None]:
        """The connections with something to read; None stands for the listening socket."""
        return [key.data for key, _ in self._selector.select(max(0.0, until - time.monotonic()))]

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return  # it went away again
        if len(self._strangers) >= self._size + MAX_STRANGERS:
            sock.close()
            return
        connection = Connection(sock, limit=frames.MAX_HELLO_BYTES)
        self._strangers.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _hear(self, connection: Connection) -> None:
        """Something came while ranks join: a hello, or the end of a rank that had joined."""
        if connection.rank is not None:
            log.warning("rank 0: rank %d left again before all ranks had joined", connection.rank)
            self._forget(connection)
            return
        try:
            connection.fill()
            frame = connection.frame()
        except (OSError, EOFError):
            self._forget(connection)
            return
        except ValueError as error:
            self._show_out(connection, f"it sent {error}", "bad_message")
            return
        if frame is not None:
            self._admit(connection, *frame)

    def _admit(self, connection: Connection, kind: bytes, content: bytes) -> None:
        hello = frames.json_object(content) if kind == frames.HELLO else {}
        version, rank, size = hello.get("tailcut"), hello.get("rank"), hello.get("size")
        if version != frames.VERSION:
            what = f"rank 0 speaks version {frames.VERSION} of the rendezvous, this one {version!r}"
            self._show_out(connection, what, "version")
        elif type(rank) is not int or size != self._size:
            what = f"rank {rank} was started with size {size}, rank 0 with size {self._size}"
            self._show_out(connection, what, "refused")
        elif not 0 < rank < self._size:
            self._show_out(connection, f"there is no rank {rank} in a group of {self._size}", "refused")
        elif rank in self._joined:
            self._show_out(connection, f"rank {rank} has joined already: two processes claim it", "refused")
        else:
            self._strangers.remove(connection)
            connection.rank, connection.limit = rank, frames.MAX_BLOB_BYTES
            self._joined[rank] = connection

    def _show_out(self, connection: Connection, what: str, reason: str) -> None:
        log.warning("rank 0 refused a connection at the rendezvous: %s", what)
        with contextlib.suppress(OSError):
            self._refused.append(f"{endpoint_text(*connection.sock.getpeername()[:2])}: {what}")
            connection.send(frames.ERROR, frames.error_content(what, reason, []), time.monotonic() + 0.1)
        del self._refused[8:]  # enough to understand
        self._forget(connection)

    def _drop_silent(self) -> None:
        for connection in list(self._strangers):
            if time.monotonic() - connection.since > HELLO_DEADLINE_S:
                self._show_out(connection, f"it said nothing for {HELLO_DEADLINE_S:.0f} s", "bad_message")

    def _give_up_joining(self, timeout_s: float) -> NoReturn:
        missing = [rank for rank in range(1, self._size) if rank not in self._joined]
        refused = f" (refused: {'; '.join(self._refused)})" if self._refused else ""
        what = f"{ranks_text(missing)} did not come to {self._where} within {timeout_s:.3g} s{refused}"
        self._fail(what, "missing_ranks", missing)

    # ---- rounds

    def exchange(self, payload: bytes, timeout_s: float) -> list[bytes]:
        """One round: waits for what every rank says and gives all of it to all of them."""
        deadline = time.monotonic() + timeout_s
        said = {0: payload}
        for connection in self._joined.values():  # a fast rank's next round may have come with the last one
            self._collect(connection, said)
        while len(said) < self._size:
            if time.monotonic() >= deadline:
                missing = [rank for rank in range(self._size) if rank not in said]
                what = f"{ranks_text(missing)} did not answer within {timeout_s:.3g} s"
                self._fail(what, "missing_ranks", missing)
            for ready in self._ready(deadline):
                if ready is not None:
                    self._read(ready)
                    self._collect(ready, said)
        blobs = [said[rank] for rank in range(self._size)]
        content = frames.pack(blobs)
        for connection in self._joined.values():
            self._send(connection, frames.ALL, content, deadline + frames.GRACE_S)
        return blobs

    def _read(self, connection: Connection) -> None:
        try:
            connection.fill()
        except (OSError, EOFError):
            self._fail(f"rank {connection.rank} left during the rendezvous", "rank_left", [connection.rank])

    def _collect(self, connection: Connection, said: dict[int, bytes]) -> None:
        """Takes what the rank says in this round, if it is all there."""
        rank = connection.rank
        if rank is None or rank in said:
            return
        try:
            frame = connection.frame()
        except ValueError as error:
            self._fail(f"rank {rank} sent {error}", "bad_message", [rank])
        if frame is not None and frame[0] != frames.DATA:
            self._fail(f"rank {rank} sent something unknown", "bad_message", [rank])
        if frame is not None:
            said[rank] = frame[1]

    def _send(self, connection: Connection, kind: bytes, content: bytes, deadline: float) -> None:
        try:
            connection.send(kind, content, deadline)
        except OSError:
            self._fail(f"rank {connection.rank} left during the rendezvous", "rank_left", [connection.rank])

    def _fail(self, what: str, reason: str, ranks: Sequence[int | None]) -> NoReturn:
        """Tells all ranks that are here, then raises: they would otherwise only see that rank 0 went away."""
        culprits = [rank for rank in ranks if rank is not None]
        content = frames.error_content(what, reason, culprits)
        for connection in self._joined.values():
            with contextlib.suppress(OSError):
                connection.send(frames.ERROR, content, time.monotonic() + 0.2)
        raise RendezvousError(what, reason=reason, facts=Facts(rank=0, culprits=tuple(culprits)))

    def _forget(self, connection: Connection) -> None:
        self._selector.unregister(connection.sock)
        self._strangers.discard(connection)
        if connection.rank is not None:
            self._joined.pop(connection.rank, None)
        connection.sock.close()

    def close(self) -> None:
        """Closes everything; ranks that still wait see the end of their connections."""
        for connection in [*self._joined.values(), *self._strangers]:
            connection.sock.close()
        self._joined.clear()
        self._strangers.clear()
        self._listening.close()
        self._selector.close()


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens on exactly this address; on all when the host's name leads elsewhere."""
    try:
        family, target = netinfo.resolve(host, port)[0]
    except OSError as error:
        what = f"rank 0 cannot look up the host name {host}: {error}"
        raise RendezvousError(what, reason="bad_address", facts=Facts(rank=0)) from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            sock.bind(target)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            log.warning("rank 0: %s is no address of this host (a service, or NAT?): listening on all", host)
            sock.bind(("", port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        what = f"rank 0 cannot listen at {endpoint_text(host, port)}: {error.strerror}"
        raise RendezvousError(what, reason="socket", facts=Facts(rank=0)) from None
    sock.setblocking(False)
    return sock
