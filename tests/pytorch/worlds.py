"""Ranks of a torch.distributed world over loopback, each a process of its own.

def job(place, ...):                 # at module level
    with world(place) as dist: ...   # init_process_group("tailcut")

ranks.run(job, 4)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from ranks import Place

TIMEOUT = timedelta(seconds=20)


@contextlib.contextmanager
def world(place: Place, backend: str = "tailcut", timeout: timedelta = TIMEOUT, **more: Any) -> Iterator[Any]:
    """torch.distributed, initialised for this rank, and destroyed afterwards."""
    enter(place, backend, timeout, **more)
    import torch.distributed as dist

    try:
        yield dist
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def enter(place: Place, backend: str = "tailcut", timeout: timedelta = TIMEOUT, **more: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    host, _, port = place.rendezvous.removeprefix("tcp://").rpartition(":")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, RANK=str(place.rank), WORLD_SIZE=str(place.size))
    dist.init_process_group(backend, timeout=timeout, **more)
