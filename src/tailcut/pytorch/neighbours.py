"""The backend for other devices in `cpu:tailcut,cuda:nccl`: ours to make, because PyTorch stops at ours.

A process group in Python takes the place of the one PyTorch was putting together, and what else was asked
for is left out without a word. PyTorch does not tell the creator what was asked for either; it stands in a
variable of the function that calls it.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from tailcut.errors import Misuse

_CALLER, _VARIABLE = "_new_process_group_helper", "backend_config"


def beside(options: Any, store: Store) -> Any:
    """The NCCL backend for GPUs, if the user asked for it, else None. Refuses what nobody would serve."""
    others = {device: name for device, name in _asked_for().items() if name != "tailcut"}
    for device, name in others.items():
        if (device, name) != ("cuda", "nccl"):
            what = f"tailcut cannot stand beside {name!r} for {device}: only cuda:nccl"
            raise Misuse(what)
    if not others or not torch.cuda.is_available():
        return None
    if not dist.is_nccl_available():
        raise Misuse("cuda:nccl was asked for, but this PyTorch has no NCCL")
    settings: Any = dist.ProcessGroupNCCL.Options()
    settings._timeout = options.timeout
    settings.global_ranks_in_group = options.global_ranks_in_group
    settings.group_name = options.group_id
    prefixed = PrefixStore("cuda/", store)
    return dist.ProcessGroupNCCL(prefixed, options.group_rank, options.group_size, settings)


def _asked_for() -> dict[str, str]:
    """Device -> backend, as the user gave it; nothing where PyTorch's variable has another name."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _CALLER:
            config = frame.f_locals.get(_VARIABLE)
            found = getattr(config, "device_backend_map", None)
            return {str(device): str(name) for device, name in (found or {}).items()}
        frame = frame.f_back
    return {}
