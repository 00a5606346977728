"""Orders from the harness to the ranks it measures, and their answers.

A Unix socket with a path: it reaches into network namespaces and puts no byte on any network, so that
control disturbs neither what is measured nor the counters of loopback. A message is a JSON object behind
its length in four bytes.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from pathlib import Path
from typing import Any

MESSAGE_BYTES_MAX = 256 << 20  # samples of a long run are megabytes; more is a mistake

Message = dict[str, Any]


class ControlError(RuntimeError):
    """A rank did not answer in time, or its connection ended; `ranks` says which."""

    def __init__(self, text: str, ranks: list[int]) -> None:
        super().__init__(text)
        self.ranks = ranks


def send(connection: socket.socket, message: Message) -> None:
    body = json.dumps(message).encode()
    connection.sendall(len(body).to_bytes(4, "big") + body)


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side has ended."""
    head = _read(connection, 4)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise ControlError(f"a control message of {length} bytes", [])
    body = _read(connection, length)
    return None if body is None else dict(json.loads(body))


def _read(connection: socket.socket, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


class Control:
    """The harness's side: one connection to each of `size` ranks."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self._connections: dict[int, socket.socket] = {}
        self._greetings: dict[int, Message] = {}
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(size)

    def accept(self, timeout_s: float) -> list[Message] | None:
        """Waits for greetings (each names its rank): all in rank order, or None if some are still missing."""
        deadline = time.monotonic() + timeout_s
        while len(self._greetings) < self.size:
            self._server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                return None
            connection.settimeout(None)
            greeting = receive(connection)
            if greeting is not None:
                self._connections[greeting["rank"]] = connection
                self._greetings[greeting["rank"]] = greeting
        return [self._greetings[rank] for rank in range(self.size)]

    def missing(self) -> list[int]:
        """The ranks that have not greeted."""
        return sorted(set(range(self.size)) - set(self._greetings))

    def ask(self, message: Message, timeout_s: float) -> list[Message]:
        """Gives every rank the same order and returns their answers in rank order."""
        self.tell(message)
        return self.answers(timeout_s)

    def tell(self, message: Message) -> None:
        for rank, connection in self._connections.items():
            try:
                send(connection, message)
            except OSError as error:
                raise ControlError(f"rank {rank} is gone: {error}", [rank]) from error

    def answers(self, timeout_s: float) -> list[Message]:
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Message] = {}
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(answers) < self.size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    missing = sorted(set(range(self.size)) - set(answers))
                    raise ControlError(f"ranks {missing} gave no answer in {timeout_s:.0f} s", missing)
                for key, _ in ready:
                    answers[key.data] = self._answer(key.data)
                    selector.unregister(key.fileobj)
        return [answers[rank] for rank in range(self.size)]

    def close(self) -> None:
        """Ends the connections, which the ranks take as the order to end."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._server.close()
        self.path.unlink(missing_ok=True)

    def _answer(self, rank: int) -> Message:
        try:
            answer = receive(self._connections[rank])
        except OSError:
            answer = None
        if answer is None:
            raise ControlError(f"rank {rank} ended in the middle of an order", [rank])
        if "error" in answer:
            raise ControlError(f"rank {rank}: {answer['error']}", [rank])
        return answer
