"""The backend `tailcut` of torch.distributed: reductions and all_gather are ours, the rest is Gloo's.

One tailcut group and one Gloo group serve each process group. Calls of ours share one tag, so they must come
in the same order on all ranks, as PyTorch demands anyway.
"""

from __future__ import annotations

import atexit
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    ReduceScatterOptions,
    Store,
)

from tailcut.config import Config
from tailcut.errors import Misuse, TailcutError
from tailcut.group import Group
from tailcut.pytorch import calls
from tailcut.pytorch.calls import Call
from tailcut.pytorch.completing import Completer
from tailcut.pytorch.delegating import DelegatingGroup
from tailcut.pytorch.forming import form_group
from tailcut.pytorch.hosted import through_host
from tailcut.pytorch.lives import fresh
from tailcut.pytorch.neighbours import beside
from tailcut.pytorch.profiler import span
from tailcut.pytorch.staging import Stager
from tailcut.pytorch.works import CollectiveWork

_CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
_ZERO = timedelta(0)
_TAG = 0


def create(options: Any, backend_options: Any = None) -> TailcutGroup:
    """What init_process_group and new_group call on every member, with `options` as PyTorch fills them.

    `backend_options` is what the user passed as pg_options: a tailcut.Config, or nothing.
    """
    if backend_options is not None and not isinstance(backend_options, Config):
        kind = type(backend_options).__name__
        raise Misuse(f"pg_options for the backend tailcut must be a tailcut.Config, not {kind}")
    rank, size = options.group_rank, options.group_size
    settings = (backend_options or Config()).resolved()
    limit_s = min(settings.rendezvous_timeout_s, options.timeout.total_seconds())
    store = fresh(options.store, rank, size, limit_s)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
    inner = dist.ProcessGroup(store, rank, size)
    inner._register_backend(torch.device("cpu"), _CUSTOM, gloo)
    inner._set_default_backend(_CUSTOM)
    nccl = beside(options, store)
    if nccl is not None:
        inner._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl)
    group = form_group(inner, config=settings, timeout=limit_s)
    return TailcutGroup(inner, gloo, nccl, options.store, group)


class TailcutGroup(DelegatingGroup):
    """A process group of PyTorch over a tailcut group; `group` is the latter."""

    def __init__(
        self, inner: dist.ProcessGroup, gloo: dist.ProcessGroupGloo, nccl: Any, store: Store, group: Group
    ) -> None:
        super().__init__(inner, store)
        self._register_backend(torch.device("cpu"), _CUSTOM, gloo)
        self._set_default_backend(_CUSTOM)
        self._gloo: Any = gloo
        self.group = group
        self._completer = Completer(f"tailcut-futures-{group.id:08x}")
        self._stager: Stager | None = None
        if nccl is not None:
            self._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl)
        elif torch.cuda.is_available():
            self._register_backend(torch.device("cuda"), _CUSTOM, gloo)
            self._stager = Stager(group, self._completer, f"tailcut-staging-{group.id:08x}")
        _alive.add(self)

    def getBackendName(self) -> str:  # PyTorch's spelling
        return "tailcut"

    # ---- collectives of ours

    # PyTorch itself always passes options. Other ways to call a group, and options left out, go to Gloo, but
    # for the common all-reduce.

    def allreduce(self, *args: Any, **named: Any) -> Any:
        if len(args) == 2 and isinstance(args[1], AllreduceOptions):
            tensors, opts = args
        else:
            tensors, opts = _all_reduce_arguments(*args, **named)
        call = calls.all_reduce(tensors, opts.reduceOp) if self._serves(tensors[0]) else None
        return self._hand_on("allreduce", tensors, opts) if call is None else self._start(call, opts)

    def allreduce_coalesced(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 2 and self._serves(args[0][0]):
            call = calls.all_reduce_coalesced(args[0], args[1].reduceOp)
        return (
            self._hand_on("allreduce_coalesced", *args, **named)
            if call is None
            else self._start(call, args[1])
        )

    def allgather(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and isinstance(args[2], AllgatherOptions) and self._serves(args[1][0]):
            call = calls.all_gather(args[0], args[1], self.group)
        return self._hand_on("allgather", *args, **named) if call is None else self._start(call, args[2])

    def all_gather_single(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and self._serves(args[0]):
            call = calls.all_gather_single(args[0], args[1], self.group)
        return (
            self._hand_on("_allgather_base", *args, **named) if call is None else self._start(call, args[2])
        )

    def all_gather_single_coalesced(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and self._serves(args[0][0]):
            call = calls.all_gather_coalesced(args[0], args[1], self.group)
        if call is None:
            return self._hand_on("allgather_into_tensor_coalesced", *args, **named)
        return self._start(call, args[2])

    def reduce_scatter(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and isinstance(args[2], ReduceScatterOptions) and self._serves(args[0][0]):
            call = calls.reduce_scatter(args[0], args[1], args[2].reduceOp, self.group)
        return self._hand_on("reduce_scatter", *args, **named) if call is None else self._start(call, args[2])

    def reduce_scatter_single(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and self._serves(args[0]):
            call = calls.reduce_scatter_single(args[0], args[1], args[2].reduceOp, self.group)
        if call is None:
            return self._hand_on("_reduce_scatter_base", *args, **named)
        return self._start(call, args[2])

    def reduce_scatter_single_coalesced(self, *args: Any, **named: Any) -> Any:
        call = None
        if len(args) == 3 and self._serves(args[0][0]):
            call = calls.reduce_scatter_coalesced(args[0], args[1], args[2].reduceOp, self.group)
        if call is None:
            return self._hand_on("reduce_scatter_tensor_coalesced", *args, **named)
        return self._start(call, args[2])

    def _serves(self, tensor: torch.Tensor) -> bool:
        """Whether tensors in this kind of memory are ours: on the CPU, and on GPUs unless NCCL has those."""
        return tensor.is_cpu or (tensor.is_cuda and self._stager is not None)

    def _start(self, call: Call, opts: Any) -> CollectiveWork:
        limit: timedelta = opts.timeout
        if limit <= _ZERO:  # not given: the group's own, which set_timeout may have changed
            limit = self._gloo.options._timeout
        with span(call.collective):
            if self._stager is not None and call.source.is_cuda:
                return self._stager.start(call, limit.total_seconds())
            try:
                work = calls.start(call, self.group, _TAG, limit.total_seconds())
            except Misuse:
                raise
            except TailcutError as error:  # from wait(), so that PyTorch's reducer survives it
                return CollectiveWork(None, call.results, self._completer, error=error)
            started = CollectiveWork(work, call.results, self._completer, call.finish)
        if call.finish is not None and opts.asyncOp:
            self._completer.see_to(started)  # the caller may never wait
        return started

    def _hand_on(self, name: str, *args: Any, **named: Any) -> Any:
        if self._stager is not None:  # Gloo knows GPUs only in part
            return through_host(getattr(self._inner, name), args, named)
        return getattr(self._inner, name)(*args, **named)

    # ---- the end

    def shutdown(self) -> None:
        """Leaves the group when peers have what they need; destroy_process_group calls it."""
        self.group.close()
        self._end_threads()
        super().shutdown()

    def abort(self) -> None:
        """Leaves the group at once; operations in flight end with an error here and at the peers."""
        self.group.close(linger=0)
        self._end_threads()
        super().abort()

    def leave(self) -> None:
        """At the end of a process that did not destroy it: PyTorch keeps it beyond the interpreter's end."""
        self.group.close()
        self._end_threads()
        del self.group

    def _end_threads(self) -> None:
        if self._stager is not None:
            self._stager.close()
        self._completer.close()


_alive: weakref.WeakSet[TailcutGroup] = weakref.WeakSet()


def _leave_all() -> None:
    for group in list(_alive):
        group.leave()


atexit.register(_leave_all)


def _all_reduce_arguments(
    tensors: Any = None, opts: Any = None, timeout: Any = None, op: Any = None, tensor: Any = None
) -> tuple[Any, AllreduceOptions]:
    """Tensors and options from any of the ways to call allreduce that PyTorch knows."""
    tensors = tensor if tensors is None else tensors
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    if isinstance(opts, AllreduceOptions):
        return tensors, opts
    options = AllreduceOptions()
    op = opts if op is None else op
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return tensors, options
