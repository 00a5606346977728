"""Gloo over TCP, as torch.distributed has it. Variants: none."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)  # above the harness's own deadline, which names the ranks that are late


class Gloo:
    def __init__(self, meeting: Any) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        self.versions = {"torch": torch.__version__}
        os.environ["GLOO_SOCKET_IFNAME"] = meeting.interface
        torch.set_num_threads(1)
        where = f"tcp://{meeting.host}:{meeting.port}"
        dist.init_process_group(
            "gloo", init_method=where, rank=self.rank, world_size=self.size, timeout=TIMEOUT
        )

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, array: Any, variant: str) -> str:
        dist.all_reduce(torch.from_numpy(array))
        return ""

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        return dist.all_reduce(torch.from_numpy(array), async_op=True).wait

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        dist.destroy_process_group()


connect = Gloo
