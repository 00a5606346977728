"""The door for gradients: `tailcut.attach(ddp_model)` puts a communication hook into DistributedDataParallel.

Behind this door it is known that a gradient is a gradient, and of which parameters. The average replaces what
stands in the bucket, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tailcut.config import Config
from tailcut.errors import Misuse
from tailcut.group import Group
from tailcut.pytorch.attached import Attached
from tailcut.pytorch.forming import form_group

Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]
_DOOR = "_tailcut_door"  # attribute of a model that has our hook


def attach(
    ddp_model: DistributedDataParallel,
    *,
    group: Group | None = None,
    config: Config | None = None,
    timeout: float | timedelta | None = None,
    wrap: Callable[[Hook], Hook] | None = None,
) -> Attached:
    """From now on tailcut averages the gradients of this model. All ranks call it, in the same order.

    Forms a group over the model's process group, unless one is given, or the process group is tailcut's and
    has one. `timeout`, in seconds, is for each bucket (default: timeout_s of the configuration). `wrap` goes
    around the hook, as torch's fp16_compress_wrapper does. Errors are raised by `backward()`.
    """
    _check(ddp_model)
    if group is not None and config is not None:
        raise Misuse("give group or config, not both: a group has its configuration")
    door: Door | None = getattr(ddp_model, _DOOR, None)
    if door is not None and door.attached is not None:
        raise Misuse("this model is attached already: detach() first")
    if door is not None and wrap is not None:
        raise Misuse("DDP takes one hook for life, so `wrap` can be given only the first time")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    given = group if group is not None else _group_of(ddp_model.process_group)
    if given is not None and given.size != ddp_model.process_group.size():
        what = f"the group has {given.size} ranks, the model's process group {ddp_model.process_group.size()}"
        raise Misuse(what)
    own = form_group(ddp_model.process_group, config=config) if given is None else None
    try:
        attached = Attached(ddp_model, given or own, own=own, timeout=seconds)  # type: ignore[arg-type]
    except BaseException:
        if own is not None:
            own.close(0)
        raise
    if door is None:
        door = Door(ddp_model.process_group)
        ddp_model.register_comm_hook(door, wrap(reduce_bucket) if wrap else reduce_bucket)
        setattr(ddp_model, _DOOR, door)
    door.open(attached)
    return attached


def _check(ddp_model: Any) -> None:
    if not isinstance(ddp_model, DistributedDataParallel):
        kind = type(ddp_model).__name__
        raise Misuse(f"ddp_model must be a DistributedDataParallel, not {kind}: wrap the model first")


class Door:
    """The state DDP keeps with the hook, for the life of the model; what lies behind it may change."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self.attached: Attached | None = None

    def open(self, attached: Attached) -> None:
        """Buckets go to `attached`, until it detaches."""
        self.attached = attached
        attached.enter(self._close)

    def _close(self) -> None:
        self.attached = None


def reduce_bucket(state: Door, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook. DDP insists on the name `bucket`."""
    if state.attached is None:
        return allreduce_hook(state.process_group, bucket)
    return state.attached.reduce(bucket)


# DDP compares annotations with classes, and here they are text
reduce_bucket.__annotations__.clear()


def _group_of(process_group: dist.ProcessGroup) -> Group | None:
    """The group of ours that a process group of backend tailcut runs on."""
    group = getattr(process_group, "group", None)
    return group if isinstance(group, Group) else None
