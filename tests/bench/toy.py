"""A communicator for the tests of the harness: rank 0 adds up over TCP. Variants make it misbehave on rank 1.

lie: one element is wrong. stale: the result of the operation before. idle: does nothing. hang: never ends.
die: the process ends. raise: an exception.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Toy:
    def __init__(self, meeting: Any) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.versions = {"toy": "1"}
        self._calls = 0
        self._last: Any = None
        if self.rank == 0:
            with socket.create_server((meeting.host, meeting.port)) as server:
                self._links = [server.accept()[0] for _ in range(self.size - 1)]
        else:
            self._links = [self._dial(meeting.host, meeting.port)]

    def _dial(self, host: str, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection((host, port))
            except ConnectionRefusedError:
                time.sleep(0.01)

    def barrier(self) -> None:
        self._sum(np.zeros(1, dtype=np.float32))

    def all_reduce(self, array: Any, op: str, variant: str) -> str:
        self._calls += 1
        before, self._last = self._last, None
        mine = array.copy()
        self._sum(array)
        self._last = array.copy()
        if self.rank == 1 and self._calls > 2:
            self._misbehave(array, mine, before, variant)
        return f"toy {variant}"

    def _misbehave(self, array: Any, mine: Any, before: Any, variant: str) -> None:
        if variant == "lie":
            array[array.size // 2] += 1
        elif variant == "stale":
            array[:] = before
        elif variant == "idle":
            array[:] = mine
        elif variant == "hang":
            time.sleep(300)
        elif variant == "die":
            print("rank 1 takes its leave", flush=True)
            os._exit(3)
        elif variant == "raise":
            raise ZeroDivisionError("planted")

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        self._sum(array)
        return lambda: None

    def counters(self) -> dict[str, int]:
        return {"calls": self._calls}

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _sum(self, array: Any) -> None:
        if self.rank:
            self._links[0].sendall(array.tobytes())
            array[:] = self._read(self._links[0], array)
            return
        for link in self._links:
            array += self._read(link, array)
        for link in self._links:
            link.sendall(array.tobytes())

    def _read(self, link: socket.socket, like: Any) -> Any:
        data = bytearray()
        while len(data) < like.nbytes:
            part = link.recv(like.nbytes - len(data))
            if not part:
                raise ConnectionError("a rank is gone")
            data += part
        return np.frombuffer(data, dtype=np.float32)


connect = Toy
