"""tailcut itself under measurement. Variants: auto, small, ring, transpose."""

from __future__ import annotations

from collections.abc import Callable

import tailcut
from tailcut.bench.communicator import Array, Meeting


class Own:
    def __init__(self, meeting: Meeting) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.versions: dict[str, str] = {}
        self._resent_packets = 0
        config = tailcut.Config(socket_ifname=f"={meeting.interface}")
        where = f"tcp://{meeting.host}:{meeting.port}"
        self._group = tailcut.connect(rank=self.rank, size=self.size, rendezvous=where, config=config)

    def barrier(self) -> None:
        self._group.barrier()

    def all_reduce(self, array: Array, op: str, variant: str) -> str:
        schedule = None if variant in ("", "auto") else variant
        outcome = self._group.all_reduce(array, op, schedule=schedule)
        self._resent_packets += outcome.resent_packets
        return outcome.family

    def start(self, array: Array, tag: int) -> Callable[[], None]:
        work = self._group.all_reduce_async(array, tag=tag)

        def wait() -> None:
            self._resent_packets += work.wait().resent_packets

        return wait

    def counters(self) -> dict[str, int]:
        return {"resent_packets": self._resent_packets}

    def close(self) -> None:
        self._group.close()


connect = Own
