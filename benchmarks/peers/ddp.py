"""A training step of DistributedDataParallel as a communicator: the array is the gradient.

The parameters are BUCKETS pieces of the array's length; the loss is their product with the array, so that the
array is its gradient, and the averaged gradient is what all_reduce must give. What is timed is forward,
backward with BUCKETS buckets, and copying the gradients back: the same for every door.

TAILCUT_TEST_DOOR chooses it: gloo (DDP's own), hook (tailcut.attach on Gloo), backend (backend tailcut).
Variant `timed` of the hook counts how long it keeps the training thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch.nn.parallel import DistributedDataParallel

import tailcut
from tailcut.pytorch.forming import form_group

BUCKETS = 20
TIMEOUT = timedelta(minutes=5)  # above the harness's own deadline, which names the ranks that are late


class Pieces(torch.nn.Module):
    """Parameters as long as equal pieces of the array."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.pieces = torch.nn.ParameterList(torch.zeros(elements // BUCKETS) for _ in range(BUCKETS))

    def forward(self, array: torch.Tensor) -> torch.Tensor:
        parts = array.view(BUCKETS, -1)
        return torch.stack(
            [torch.dot(piece, part) for piece, part in zip(self.pieces, parts, strict=True)]
        ).sum()


class Ddp:
    def __init__(self, meeting: Any) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.versions = {"torch": torch.__version__}
        os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
        torch.set_num_threads(1)
        self._door = os.environ["TAILCUT_TEST_DOOR"]
        dist.init_process_group(
            "tailcut" if self._door == "backend" else "gloo",
            init_method=f"tcp://{meeting.host}:{meeting.port}",
            rank=self.rank,
            world_size=self.size,
            timeout=TIMEOUT,
        )
        # The one for `timed` is apart: its channel is watched.
        config = tailcut.Config(socket_ifname=f"={meeting.interface}")
        self._groups = [form_group(config=config) for _ in range(2)] if self._door == "hook" else []
        self._models: dict[tuple[int, str], DistributedDataParallel] = {}
        self._watches = [Stopwatch(group) for group in self._groups[1:]]

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, array: Any, op: str, variant: str) -> str:
        if op != "avg":
            raise ValueError("DDP averages")
        model = self._models.get((array.size, variant)) or self._model(array.size, variant)
        model.zero_grad()
        gradient = torch.from_numpy(array)
        model(gradient).backward()
        for piece, part in zip(model.module.pieces, gradient.view(BUCKETS, -1), strict=True):
            part.copy_(piece.grad)
        return ""

    def _model(self, elements: int, variant: str) -> DistributedDataParallel:
        """A bucket for every piece: each is as large as the limit."""
        model = DistributedDataParallel(Pieces(elements), bucket_cap_mb=elements * 4 / BUCKETS / 2**20)
        if self._door == "hook":
            timed = variant == "timed"
            attached = tailcut.attach(model, group=self._groups[timed])
            if timed:
                self._watches[0].watch(attached)
        self._models[elements, variant] = model
        return model

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        raise NotImplementedError("a step of DDP cannot run in the background")

    def counters(self) -> dict[str, int]:
        names = ("buckets", "hook_ns", "native_ns")
        return {name: sum(getattr(watch, name) for watch in self._watches) for name in names}

    def close(self) -> None:
        self._models.clear()
        for group in self._groups:
            group.close()
        dist.destroy_process_group()


connect = Ddp
