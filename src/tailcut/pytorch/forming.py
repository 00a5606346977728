"""From a process group of PyTorch to a group of ours: the ranks find each other by a collective of its own.

Not by the store: under torchrun it outlives a restart, and after destroy + init it still holds the addresses
of the life before. A collective reaches exactly the ranks that live now.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from tailcut.config import Config
from tailcut.errors import Facts, RendezvousError
from tailcut.group import Group, connect
from tailcut.group.work import nanoseconds

MAX_BLOB_BYTES = 1 << 20  # of what one rank says in one round; nothing from the network is trusted
_TIME_WORDS = ("timed out", "timeout", "time out")


def form_group(
    process_group: dist.ProcessGroup | None = None,
    *,
    config: Config | None = None,
    timeout: float | timedelta | None = None,
) -> Group:
    """A tailcut group of the ranks of `process_group` (None: the default one), all of whom must call this.

    `timeout`, in seconds or as a timedelta, is for the whole of it; left out it is the configuration's
    rendezvous_timeout_s.
    """
    group = dist.distributed_c10d._get_default_group() if process_group is None else process_group
    settings = (config or Config()).resolved()
    if timeout is None:
        timeout = settings.rendezvous_timeout_s
    elif isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    gather = CollectiveGather(group, nanoseconds(timeout) / 1e9)
    return connect(rank=group.rank(), size=group.size(), all_gather=gather, config=settings)


class CollectiveGather:
    """An all-gather of bytes over a process group's all-gather of tensors, until a deadline."""

    def __init__(self, process_group: Any, timeout_s: float) -> None:
        self._group = process_group
        self._rank, self._size = process_group.rank(), process_group.size()
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._device = _device(process_group)

    def __call__(self, payload: bytes) -> list[bytes]:
        """What all ranks passed in, by rank: first the lengths, then the bytes, padded to the longest."""
        lengths = [int(each.item()) for each in self._gather(torch.tensor([len(payload)], dtype=torch.int64))]
        wrong = [rank for rank, length in enumerate(lengths) if not 0 <= length <= MAX_BLOB_BYTES]
        if wrong:
            raise self._error(f"rank {wrong[0]} announced {lengths[wrong[0]]} bytes", "bad_message", wrong)
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        if payload:
            padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        blobs = self._gather(padded)
        return [blob[:length].numpy().tobytes() for blob, length in zip(blobs, lengths, strict=True)]

    def _gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise self._late()
        limit = timedelta(seconds=max(left_s, 0.001))
        options = AllgatherOptions()
        options.timeout = limit
        own = own.to(self._device)
        all_of_them = [torch.empty_like(own) for _ in range(self._size)]
        try:
            self._group.allgather([all_of_them], [own], options).wait(limit)
            return [each.cpu() for each in all_of_them]
        except RuntimeError as error:  # what every backend of PyTorch raises
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            if time.monotonic() >= self._deadline or any(word in text.lower() for word in _TIME_WORDS):
                raise self._late(text) from error
            what = f"the collective that forms the group failed: {text}"
            raise self._error(what, "rank_left") from error

    def _late(self, why: str = "") -> RendezvousError:
        tail = f" ({why})" if why else ""
        what = f"not every rank came to form the group within {self._timeout_s:g} s{tail}"
        return self._error(what, "missing_ranks")

    def _error(self, what: str, reason: str, culprits: list[int] | None = None) -> RendezvousError:
        facts = Facts(rank=self._rank, culprits=tuple(culprits or ()))
        return RendezvousError(what, reason=reason, facts=facts)


def _device(process_group: Any) -> torch.device:
    """Where the group's collectives take their tensors: memory of the CPU if it can."""
    kinds = [device.type for device in process_group._device_types]
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())
