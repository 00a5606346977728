"""What the ranks settle when they attach a model: that it is the same model, and which tags are its own.

Tag 0 is for the calls of users and of c10d. Every attached model has a block of tags, so that models that
share a group need not reduce in the same order on all ranks.
"""

from __future__ import annotations

import hashlib
import threading
import weakref

import numpy as np
from torch.nn.parallel import DistributedDataParallel

from tailcut.errors import Facts, Mismatch, Misuse, ranks_text
from tailcut.group import Group
from tailcut.pytorch.buckets import TAGS

AGREE_TAG = 255
FIRST_TAG = 256
MODELS_MAX = 63  # attached to one group at a time: so many blocks fit below the group's own tags

_lock = threading.Lock()
_taken: weakref.WeakKeyDictionary[Group, set[int]] = weakref.WeakKeyDictionary()


def take_tags(group: Group) -> int:
    """The first tag of a block nobody uses in this group, the same on all ranks that attach alike."""
    with _lock:
        taken = _taken.setdefault(group, set())
        free = [number for number in range(MODELS_MAX) if number not in taken]
        if not free:
            raise Misuse(f"{MODELS_MAX} models are attached to this group; detach one or take another group")
        taken.add(free[0])
        return FIRST_TAG + TAGS * free[0]


def give_tags(group: Group, first_tag: int) -> None:
    """The block is free again."""
    with _lock:
        _taken.get(group, set()).discard((first_tag - FIRST_TAG) // TAGS)


def agree(group: Group, ddp_model: DistributedDataParallel, first_tag: int) -> None:
    """Returns when all ranks have attached this model; a Mismatch if some have attached another one."""
    own = np.array([_digest(ddp_model, first_tag)], np.int64)
    said = np.zeros(group.size, np.int64)
    group.all_gather(own, said, tag=AGREE_TAG, timeout=group.config.rendezvous_timeout_s)
    others = tuple(rank for rank in range(group.size) if said[rank] != own[0])
    if others:
        what = (
            f"{ranks_text(others)} attached another model than rank {group.rank}: names, shapes or dtypes of "
            "parameters differ, or models were attached in another order"
        )
        raise Mismatch(what, facts=Facts(rank=group.rank, group=group.id, culprits=others))


def _digest(ddp_model: DistributedDataParallel, first_tag: int) -> int:
    """63 bits of everything that must be equal."""
    parts = [f"tags {first_tag}, static {bool(ddp_model.static_graph)}"]
    parts += [
        f"{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}"
        for name, parameter in ddp_model.module.named_parameters()
    ]
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8], "little") >> 1
