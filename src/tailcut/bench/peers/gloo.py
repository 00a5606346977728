"""Gloo over TCP, as torch.distributed has it. Variants: none."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=5)  # above the harness's own deadline, which names the ranks that are late
OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "prod": dist.ReduceOp.PRODUCT,
}


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

    def all_reduce(self, array: Any, op: str, variant: str) -> str:
        tensor = _tensor(array)
        dist.all_reduce(tensor, OPS[op])
        if op == "avg":  # Gloo has no mean: its users divide, as DDP does
            tensor.div_(self.size)
        return ""

    def start(self, array: Any, tag: int) -> Callable[[], None]:
        return dist.all_reduce(_tensor(array), async_op=True).wait  # type: ignore[no-any-return]

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        dist.destroy_process_group()


def _tensor(array: Any) -> torch.Tensor:
    """Over the same memory. numpy's bfloat16 is that of ml_dtypes, which torch does not know."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


connect = Gloo
