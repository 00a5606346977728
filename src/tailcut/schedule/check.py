"""Decides, without moving a byte, whether a Plan is right.

What is proven. Take any Plan that passes, any block size, and any run of the engine on it: steps fire block
by block in any order that `after` allows; packets are lost, repeated and reordered as the network likes, but
in the end each arrives; INPUT and OUTPUT of an all_reduce are the same memory or not. Then

1. progress: in the end every block of every step is done; nothing waits for itself.
2. memory: the source of a Send stays as it is until the receiver has it; a Recv or Combine writes only over
   what nobody needs any more; nothing is read before it is produced. A Send with retain=False has arrived
   when all Recvs and Combines of its rank are done: its source may change then.
3. values: each byte of a result is the combination of every rank's contribution to this byte, each exactly
   once, made final once. For all_reduce it is the same expression on all ranks, and in a family that promises
   it the flat one in rank order: results are bit-identical on all ranks, and from run to run.
4. ports and limits: no rank sends or receives more than `incast` transfers in a round; what is sent arrived
   in an earlier round; regions lie in their buffers and hold whole elements; numbers fit into their fields.

Causality is taken position by position, never by whole transfers: position p of a step is known to follow
position p of the steps it waits for, and nothing more. An engine with blocks of whatever size keeps at least
this order, so the proof holds for it also while a transfer is half received and half passed on.

Not proven: that the engine keeps to these rules, and what it adds (windows, grants, repair, time).
"""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.schedule.causality import Causality, fault, region_of
from tailcut.schedule.hazards import check_hazards
from tailcut.schedule.plan import (
    MAX_LENGTH,
    MAX_TRANSFERS,
    RANK_ORDERED,
    Buffer,
    Combine,
    Part,
    PlanError,
    Region,
    Send,
    Step,
)
from tailcut.schedule.values import check_values
from tailcut.types import Collective


def check(
    parts: Sequence[Part], *, itemsize: int = 1, incast: int = 1, rank_ordered: bool | None = None
) -> None:
    """Raises PlanError, naming rank, step and reason, unless all of the above holds for these Parts.

    `itemsize`: bytes of one element; regions hold whole ones. `incast`: transfers a rank may send, and may
    receive, in a round. `rank_ordered`: whether each result must be one flat Combine of the contributions of
    ranks 0..n-1 in this order; by default what the family promises.
    """
    _check_whole(parts, itemsize)
    for part in parts:
        for index, step in enumerate(part.steps):
            _check_step(part, index, step, itemsize)
    causality = Causality(parts)
    _check_ports(parts, incast)
    _check_rounds_and_stages(parts, causality)
    check_hazards(parts, causality)
    if rank_ordered is None:
        rank_ordered = parts[0].family in RANK_ORDERED
    check_values(parts, causality, rank_ordered=rank_ordered)
    _check_retained(parts, causality)


def _check_whole(parts: Sequence[Part], itemsize: int) -> None:
    """The Parts belong together: one each for ranks 0..n-1 of the same operation."""
    if not parts:
        raise PlanError("a Plan has at least one Part")
    first = parts[0]
    for rank, part in enumerate(parts):
        if part.rank != rank or part.size != len(parts):
            raise PlanError(f"entry {rank} of {len(parts)} is the Part of rank {part.rank} of {part.size}")
        if (part.family, part.collective, part.stages) != (first.family, first.collective, first.stages):
            raise PlanError(f"rank {rank}: family, collective or number of stages differs from rank 0")
        for name in ("input_bytes", "output_bytes", "stage_bytes"):
            value = getattr(part, name)
            if value < 0 or (name != "stage_bytes" and value % itemsize):
                raise PlanError(
                    f"rank {rank}: {name} = {value} is no whole number of {itemsize}-byte elements"
                )
    inputs, outputs = [part.input_bytes for part in parts], [part.output_bytes for part in parts]
    expected = {
        Collective.ALL_REDUCE: (inputs[:1] * len(parts), inputs[:1] * len(parts)),
        Collective.REDUCE_SCATTER: ([sum(outputs)] * len(parts), outputs),
        Collective.ALL_GATHER: (inputs, [sum(inputs)] * len(parts)),
    }[first.collective]
    if (inputs, outputs) != expected:
        name = first.collective.name.lower()
        raise PlanError(f"{name} cannot have inputs of {inputs} and outputs of {outputs} bytes")


def _check_step(part: Part, index: int, step: Step, itemsize: int) -> None:
    """One step by itself: bounds, alignment, numbers in their ranges."""
    regions = (region_of(step), *step.inputs) if isinstance(step, Combine) else (region_of(step),)
    for region in regions:
        _check_region(part, index, region, itemsize)
    if not 0 <= step.stage < part.stages:
        raise fault(part, index, f"stage {step.stage} of {part.stages} stages")
    if isinstance(step, Combine):
        if not step.inputs:
            raise fault(part, index, "a Combine has at least one input")
        for region in step.inputs:
            if region.length != step.target.length:
                raise fault(part, index, f"input {region} and target differ in length")
    else:
        if not 0 <= step.peer < part.size or step.peer == part.rank:
            raise fault(part, index, "no such peer")
        if not 0 <= step.transfer < MAX_TRANSFERS:
            raise fault(part, index, f"transfer numbers go from 0 to {MAX_TRANSFERS - 1}")
        if step.round < 0:
            raise fault(part, index, f"round {step.round} is before the first")
        if regions[0].length >= MAX_LENGTH:
            raise fault(part, index, f"a transfer has less than {MAX_LENGTH} bytes")
    if not isinstance(step, Send) and step.target.buffer is Buffer.INPUT:
        raise fault(part, index, "writes INPUT, which belongs to the caller")


def _check_region(part: Part, index: int, region: Region, itemsize: int) -> None:
    if region.buffer is Buffer.INPUT:
        limit = part.input_bytes
    else:
        limit = part.output_bytes if region.buffer is Buffer.OUTPUT else part.stage_bytes
    if region.offset < 0 or region.offset + region.length > limit:
        raise fault(part, index, f"{region} lies outside its buffer of {limit} bytes")
    if region.length < 1:
        raise fault(part, index, f"{region} is empty; empty regions are left out of a Plan")
    if region.offset % itemsize or region.length % itemsize:
        raise fault(part, index, f"{region} splits elements of {itemsize} bytes")


def _check_ports(parts: Sequence[Part], incast: int) -> None:
    """Per rank and round at most `incast` Sends and Recvs each; Sends stand in the order of their rounds."""
    for part in parts:
        sent: dict[int, int] = {}
        received: dict[int, int] = {}
        latest = 0
        for index, step in enumerate(part.steps):
            if isinstance(step, Combine):
                continue
            used = sent if isinstance(step, Send) else received
            used[step.round] = used.get(step.round, 0) + 1
            if used[step.round] > incast:
                port = "sends" if isinstance(step, Send) else "receives"
                raise fault(
                    part, index, f"rank {part.rank} {port} {used[step.round]} transfers in round {step.round}"
                )
            if isinstance(step, Send):
                if step.round < latest:
                    raise fault(part, index, f"round {step.round} stands behind a Send of round {latest}")
                latest = step.round


def _check_rounds_and_stages(parts: Sequence[Part], causality: Causality) -> None:
    """What is sent arrived in an earlier round; no step waits for one of a later stage."""
    arrived = [-1] * len(causality.nodes)  # per node the last round it needs, its own included
    for number in causality.order:
        node = causality.nodes[number]
        part = parts[node.rank]
        step = part.steps[node.step]
        for earlier in causality.before[number]:
            cause = causality.nodes[earlier]
            arrived[number] = max(arrived[number], arrived[earlier])
            if parts[cause.rank].steps[cause.step].stage > step.stage:
                raise fault(part, node.step, f"of stage {step.stage} waits for a step of a later stage")
        if isinstance(step, Send):
            if step.round <= arrived[number]:
                text = f"leaves in round {step.round}, but what it sends arrives in round {arrived[number]}"
                raise fault(part, node.step, text)
            arrived[number] = step.round


def _check_retained(parts: Sequence[Part], causality: Causality) -> None:
    for number in causality.unproven():
        node = causality.nodes[number]
        step = parts[node.rank].steps[node.step]
        if isinstance(step, Send) and not step.retain:
            text = "retain is False, but nothing proves that the peer has the data when this rank is done"
            raise fault(parts[node.rank], node.step, text)
