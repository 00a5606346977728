"""Any MPI, through mpi4py; launcher and environment decide which one and over what. Variants: none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpi4py
from mpi4py import MPI

OPS = {"sum": MPI.SUM, "avg": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "prod": MPI.PROD}


class Mpi:
    def __init__(self, meeting: Any) -> None:
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        if self.size != meeting.size:
            raise RuntimeError(f"MPI started {self.size} ranks instead of {meeting.size}")
        library = MPI.Get_library_version().replace("\0", "").split("\n")[0].split(",")[0]
        self.versions = {"mpi": " ".join(library.split()), "mpi4py": mpi4py.__version__}

    def barrier(self) -> None:
        self._world.Barrier()

    def all_reduce(self, array: Any, op: str, variant: str) -> str:
        self._world.Allreduce(MPI.IN_PLACE, array, OPS[op])
        if op == "avg":  # MPI has no mean: its users divide
            array /= self.size
        return ""

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        return self._world.Iallreduce(MPI.IN_PLACE, array).Wait  # type: ignore[no-any-return]

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        MPI.Finalize()


connect = Mpi
