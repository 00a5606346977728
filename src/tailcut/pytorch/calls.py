"""PyTorch's calls as calls of ours: one row in, one row out. None means that the call is Gloo's.

What decides between us and Gloo is known alike to all ranks: the collective, dtype, reduction, layout,
numbers of tensors. How a tensor lies in memory is each rank's own affair and decides nothing: what is not
contiguous is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from tailcut.group import Group, Work

Tensors = Sequence[torch.Tensor]

_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.uint8,
    }
)
_NAMES = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}
_OPS = {getattr(ReduceOp.RedOpType, theirs): ours for theirs, ours in _NAMES.items()}


class Call(NamedTuple):
    """A collective of ours over contiguous rows."""

    collective: str  # all_reduce, reduce_scatter, all_gather
    source: torch.Tensor
    target: torch.Tensor  # the source itself for all_reduce
    op: str
    results: Tensors  # the caller's tensors
    finish: Callable[[], None] | None  # afterwards, where the caller's tensors are not the target itself


def start(call: Call, group: Group, tag: int, timeout_s: float) -> Work:
    """Starts it; the rows are in the memory of the CPU."""
    if call.collective == "all_reduce":
        return group.all_reduce_async(call.target, call.op, tag=tag, timeout=timeout_s)
    if call.collective == "all_gather":
        return group.all_gather_async(call.source, call.target, tag=tag, timeout=timeout_s)
    return group.reduce_scatter_async(call.source, call.target, call.op, tag=tag, timeout=timeout_s)


# ---- one function for each of PyTorch's calls


def all_reduce(tensors: Tensors, op: Any) -> Call | None:
    name = _reduction(op, tensors[0])
    if name is None or len(tensors) != 1:
        return None
    row = tensors[0].detach()
    if row.is_contiguous():  # nearly always: 3 us less than the general way
        return Call("all_reduce", row, row, name, tensors, None)
    row = row.contiguous()
    return Call("all_reduce", row, row, name, tensors, _back(tensors, row.view(-1)))


def all_reduce_coalesced(tensors: Tensors, op: Any) -> Call | None:
    """All of them as one."""
    name = _reduction(op, tensors[0])
    if name is None or not _alike(tensors):
        return None
    row = _pack(tensors)
    return Call("all_reduce", row, row, name, tensors, _back(tensors, row))


def all_gather(outputs: Sequence[Tensors], inputs: Tensors, group: Group) -> Call | None:
    """One list of outputs, a tensor for each rank."""
    if len(inputs) != 1 or len(outputs) != 1 or len(outputs[0]) != group.size:
        return None
    given, wanted = inputs[0], outputs[0]
    if not _alike([given, *wanted]) or any(each.shape != given.shape for each in wanted):
        return None  # Gloo says what does not fit
    target = _room(wanted)
    return _gathering(_row(given), target, wanted, _back(wanted, target), group.rank)


def all_gather_single(output: torch.Tensor, given: torch.Tensor, group: Group) -> Call | None:
    if not _alike([given, output]) or output.numel() != given.numel() * group.size:
        return None
    target = _room([output])
    return _gathering(_row(given), target, [output], _back([output], target), group.rank)


def all_gather_coalesced(outputs: Tensors, inputs: Tensors, group: Group) -> Call | None:
    """All of them as one: each rank's row holds its inputs one behind the other."""
    fits = len(outputs) == len(inputs) > 0 and _alike([*inputs, *outputs])
    pairs = list(zip(outputs, inputs, strict=fits))
    if not fits or any(out.numel() != given.numel() * group.size for out, given in pairs):
        return None
    if len(pairs) == 1:
        return all_gather_single(outputs[0], inputs[0], group)
    source = _pack(inputs)
    target = source.new_empty(source.numel() * group.size)

    def finish() -> None:
        by_rank = target.view(group.size, -1)
        first = 0
        for output, given in pairs:
            length = by_rank.shape[1] * given.numel() // max(1, sum(each.numel() for each in inputs))
            part = by_rank[:, first : first + length].contiguous().view(given.dtype)
            output.detach().copy_(part.view(output.shape))
            first += length

    return Call("all_gather", source, target, "sum", outputs, finish)


def reduce_scatter(outputs: Tensors, inputs: Sequence[Tensors], op: Any, group: Group) -> Call | None:
    """One list of inputs, a tensor for each rank."""
    if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) != group.size:
        return None
    output, given = outputs[0], inputs[0]
    name = _reduction(op, output)
    if name is None or not _alike([output, *given]) or any(each.shape != output.shape for each in given):
        return None
    return _scattering(_pack(given), [output], name)


def reduce_scatter_single(output: torch.Tensor, given: torch.Tensor, op: Any, group: Group) -> Call | None:
    name = _reduction(op, output)
    if name is None or not _alike([output, given]) or given.numel() != output.numel() * group.size:
        return None
    return _scattering(_row(given), [output], name)


def reduce_scatter_coalesced(outputs: Tensors, inputs: Tensors, op: Any, group: Group) -> Call | None:
    """All of them as one: each rank's shard holds its outputs one behind the other."""
    fits = len(outputs) == len(inputs) > 0 and _alike([*inputs, *outputs])
    name = _reduction(op, outputs[0]) if fits else None
    pairs = list(zip(outputs, inputs, strict=fits))
    if name is None or any(given.numel() != output.numel() * group.size for output, given in pairs):
        return None
    source = torch.cat([_row(given).view(group.size, -1) for given in inputs], dim=1).view(-1)
    return _scattering(source, outputs, name)


# ---- rows


def _gathering(
    source: torch.Tensor,
    target: torch.Tensor,
    results: Tensors,
    finish: Callable[[], None] | None,
    rank: int,
) -> Call:
    in_place = source.data_ptr() == target.data_ptr() + rank * source.numel() * source.element_size()
    return Call("all_gather", source if in_place else _apart(source, target), target, "sum", results, finish)


def _scattering(source: torch.Tensor, outputs: Tensors, op: str) -> Call:
    target = _room(outputs)
    return Call("reduce_scatter", _apart(source, target), target, op, outputs, _back(outputs, target))


def _reduction(op: Any, tensor: torch.Tensor) -> str | None:
    """Our name of the reduction, if tensors like this one can be reduced by us."""
    name = _OPS.get(op.op)
    if name is None or tensor.dtype not in _DTYPES or tensor.layout is not torch.strided:
        return None
    if name == "avg" and not tensor.is_floating_point():
        return None  # Gloo refuses it, so that the user sees PyTorch's own error
    return name


def _alike(tensors: Tensors) -> bool:
    """Whether they can travel as one: one dtype, one kind of memory, dense."""
    first = tensors[0]
    return all(
        each.dtype is first.dtype
        and each.device == first.device
        and each.layout is torch.strided
        and not each.is_quantized
        for each in tensors
    )


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row, its own memory if it is contiguous; as bytes if its dtype is not ours."""
    row = tensor.detach().contiguous().view(-1)
    return row if row.dtype in _DTYPES else row.view(torch.uint8)


def _pack(tensors: Tensors) -> torch.Tensor:
    """The tensors one behind the other: their own memory if they lie so, else a copy."""
    row = _joined(tensors)
    return torch.cat([_row(each) for each in tensors]) if row is None else row


def _room(tensors: Tensors) -> torch.Tensor:
    """A row for results of the tensors' size: their own memory if they lie one behind the other."""
    row = _joined(tensors)
    if row is not None:
        return row
    first = tensors[0]
    total = sum(each.numel() for each in tensors)
    return _row(torch.empty(total, dtype=first.dtype, device=first.device))


def _joined(tensors: Tensors) -> torch.Tensor | None:
    """One row over tensors that lie one behind the other in one memory, as chunk() leaves them."""
    first = tensors[0]
    if len(tensors) == 1:
        return _row(first) if first.is_contiguous() else None
    address, storage, total = first.data_ptr(), first.untyped_storage().data_ptr(), 0
    for each in tensors:
        if each.data_ptr() != address or not each.is_contiguous():
            return None
        if each.untyped_storage().data_ptr() != storage:
            return None
        address += each.numel() * each.element_size()
        total += each.numel()
    return _row(first.detach().as_strided((total,), (1,)))


def _back(tensors: Tensors, row: torch.Tensor) -> Callable[[], None] | None:
    """What copies the row to the tensors; None if the row is their memory already."""
    if all(each.is_contiguous() for each in tensors) and tensors[0].data_ptr() == row.data_ptr():
        return None

    def copy() -> None:
        first = 0
        values = row if row.dtype is tensors[0].dtype else row.view(tensors[0].dtype)
        for each in tensors:
            each.detach().copy_(values[first : first + each.numel()].view(each.shape))
            first += each.numel()

    return copy


def _apart(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The source, copied if a result in the target could overwrite what is still to be sent."""
    shared = source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
    return source.clone() if shared and source.numel() else source
