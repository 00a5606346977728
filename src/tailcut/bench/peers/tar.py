"""TAR over TCP: our own transpose Plan, moved by Gloo's send and receive. The baseline of the paper.

One-port rounds, as there: in each a rank sends to one other and receives from one other, and the next round
begins when both are done. Variants: transpose (the default), ring.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tailcut.schedule import ring, transpose
from tailcut.schedule.plan import Buffer, Combine, Part, Recv, Region, Send
from tailcut.types import Collective

TIMEOUT = timedelta(minutes=5)  # above the harness's own deadline, which names the ranks that are late
BUILDERS = {"transpose": transpose.build, "ring": ring.build}
UFUNCS = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


class Tar:
    def __init__(self, meeting: Any) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.versions = {"torch": torch.__version__}
        self._parts: dict[tuple[str, int, int], tuple[Part, Any]] = {}
        os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
        torch.set_num_threads(1)
        where = f"tcp://{meeting.host}:{meeting.port}"
        dist.init_process_group(
            "gloo", init_method=where, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, array: Any, op: str, variant: str) -> str:
        family = variant if variant in BUILDERS else "transpose"
        part, stage = self._part(family, array.size, array.itemsize)
        run(part, array, stage, op)
        return family

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        raise NotImplementedError("TAR over TCP is measured one operation at a time")

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        dist.destroy_process_group()

    def _part(self, family: str, count: int, itemsize: int) -> tuple[Part, Any]:
        key = (family, count, itemsize)
        if key not in self._parts:
            part = BUILDERS[family](
                collective=Collective.ALL_REDUCE,
                size=self.size,
                rank=self.rank,
                count=count,
                itemsize=itemsize,
            )
            self._parts[key] = part, np.empty(part.stage_bytes, dtype=np.uint8)
        return self._parts[key]


def run(part: Part, array: Any, stage: Any, op: str) -> None:
    """Executes the steps in their order; input and output are the same array."""
    whole = array.view(np.uint8)
    memory = {Buffer.INPUT: whole, Buffer.OUTPUT: whole, Buffer.STAGE: stage}
    pending: list[Any] = []
    around = (-1, -1)

    def bytes_of(region: Region) -> Any:
        return memory[region.buffer][region.offset : region.offset + region.length]

    def finish() -> None:
        while pending:
            pending.pop(0).wait()

    for step in part.steps:
        if isinstance(step, Combine):
            finish()
            _combine(step, [bytes_of(_like(step.target, each)) for each in step.inputs], bytes_of, array, op)
            continue
        if (step.stage, step.round) != around:
            finish()
            around = (step.stage, step.round)
        if isinstance(step, Send):
            tensor = torch.from_numpy(bytes_of(step.source))
            pending.append(dist.isend(tensor, step.peer, tag=step.transfer))
        elif isinstance(step, Recv):
            tensor = torch.from_numpy(bytes_of(step.target))
            pending.append(dist.irecv(tensor, step.peer, tag=step.transfer))
    finish()


def _like(target: Region, source: Region) -> Region:
    return Region(source.buffer, source.offset, target.length)


def _combine(
    step: Combine, inputs: list[Any], bytes_of: Callable[[Region], Any], array: Any, op: str
) -> None:
    """In rank order, as the engine does. The target may be one of the inputs."""
    total = inputs[0].view(array.dtype).copy()
    for each in inputs[1:]:
        UFUNCS[op](total, each.view(array.dtype), out=total)
    if step.final and op == "avg":
        total = total / dist.get_world_size() if total.dtype.kind == "f" else total // dist.get_world_size()
    bytes_of(step.target).view(array.dtype)[:] = total


connect = Tar
