"""A process group in Python that hands every call to an inner one of PyTorch, explicitly.

Explicitly, because PyTorch's base class runs whatever a subclass in Python leaves out with the GIL held, and
hangs (seen with broadcast and allreduce_coalesced). The inner group's bindings release it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store


class DelegatingGroup(dist.ProcessGroup):
    """Every collective goes to `inner`, a dist.ProcessGroup that holds the backend that serves it."""

    def __init__(self, inner: dist.ProcessGroup, store: Store) -> None:
        base: Any = super()
        base.__init__(inner.rank(), inner.size())  # with the store it would not construct
        self._inner: Any = inner
        self._store = store

    def _hand_on(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    def get_group_store(self) -> Store:
        return self._store

    # ---- collectives

    def allreduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("allreduce", *args, **kwargs)

    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("allreduce_coalesced", *args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("broadcast", *args, **kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("reduce", *args, **kwargs)

    def allgather(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("allgather", *args, **kwargs)

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("allgather_coalesced", *args, **kwargs)

    def all_gather_single(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("_allgather_base", *args, **kwargs)

    def all_gather_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("allgather_into_tensor_coalesced", *args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("gather", *args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("scatter", *args, **kwargs)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("reduce_scatter", *args, **kwargs)

    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("_reduce_scatter_base", *args, **kwargs)

    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("reduce_scatter_tensor_coalesced", *args, **kwargs)

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("alltoall", *args, **kwargs)

    def all_to_all_single(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("alltoall_base", *args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("send", *args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("recv", *args, **kwargs)

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("recv_anysource", *args, **kwargs)

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("barrier", *args, **kwargs)

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self._hand_on("monitored_barrier", *args, **kwargs)

    # ---- the names they had before, which callers in Python and older versions of PyTorch use

    def _allgather_base(self, *args: Any, **kwargs: Any) -> Any:
        return self.all_gather_single(*args, **kwargs)

    def allgather_into_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self.all_gather_single_coalesced(*args, **kwargs)

    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> Any:
        return self.reduce_scatter_single(*args, **kwargs)

    def reduce_scatter_tensor_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self.reduce_scatter_single_coalesced(*args, **kwargs)

    def alltoall_base(self, *args: Any, **kwargs: Any) -> Any:
        return self.all_to_all_single(*args, **kwargs)

    # ---- the rest of what a group can be asked

    def _start_coalescing(self, device: torch.device) -> None:
        self._inner._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._inner._end_coalescing(device)

    def _set_sequence_number_for_group(self) -> None:
        self._inner._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return int(self._inner._get_sequence_number_for_group())

    def _wait_for_pending_works(self) -> None:
        self._inner._wait_for_pending_works()

    def _enable_collectives_timing(self) -> None:
        self._inner._enable_collectives_timing()

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)

    def abort(self) -> None:
        self._inner.abort()

    def shutdown(self) -> None:
        self._inner.shutdown()
