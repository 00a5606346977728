"""Which contributions end up where: a Plan executed once with symbols in place of bytes.

This says something about every run because causality.py and hazards.py have shown that all runs read the
same values. A value is (expression, position): the expression says how contributions were combined, the
position at which byte of the contributions it starts. Expressions are interned: equal numbers are equal
trees, so results with equal numbers are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest

from tailcut.schedule.causality import Causality, fault
from tailcut.schedule.plan import Buffer, Combine, Part, PlanError, Recv, Region, Send
from tailcut.types import Collective

Value = tuple[int, int]  # (expression, first byte it stands for)
Memory = dict[tuple[Buffer, int, int], Value]  # (buffer, offset, length) -> value; INPUT is never written


class Expressions:
    """Interned expression trees. Expression r < n is the raw contribution of rank r."""

    def __init__(self, size: int) -> None:
        self.everyone = (1 << size) - 1
        self.members = [1 << rank for rank in range(size)]  # per expression, the ranks in it, as bits
        self.final = [False] * size
        self.inputs: list[tuple[int, ...]] = [()] * size
        self._known: dict[tuple[tuple[int, ...], bool], int] = {}

    def combine(self, inputs: tuple[int, ...], final: bool) -> int:
        """The expression for `inputs` combined in this order; ValueError says why it cannot be."""
        key = (inputs, final)
        if key in self._known:
            return self._known[key]
        members = 0
        for each in inputs:
            if members & self.members[each]:
                twice = _ranks(members & self.members[each])
                raise ValueError(f"the contribution of rank {twice} enters twice")
            members |= self.members[each]
        if final and members != self.everyone:
            lacking = _ranks(self.everyone & ~members)
            raise ValueError(f"final, but the contribution of rank {lacking} is missing")
        if final and any(self.final[each] for each in inputs):
            raise ValueError("final, but its input is final already")
        self._known[key] = len(self.members)
        self.members.append(members)
        self.final.append(final)
        self.inputs.append(inputs)
        return len(self.members) - 1


def check_values(parts: Sequence[Part], causality: Causality, *, rank_ordered: bool) -> None:
    """Every contribution enters every result exactly once, in one order for all ranks. Raises PlanError."""
    expressions = Expressions(len(parts))
    memories: list[Memory] = [{} for _ in parts]
    for number in causality.order:
        node = causality.nodes[number]
        part, memory = parts[node.rank], memories[node.rank]
        step = part.steps[node.step]
        if isinstance(step, Send):
            value = _read(part, node.step, memory, step.source)
            recv = parts[node.to_rank].steps[node.to_step]
            assert isinstance(recv, Recv)
            _write(memories[node.to_rank], recv.target, value)
        else:
            assert isinstance(step, Combine)  # no node stands at a Recv
            value = _combine(part, node.step, step, memory, expressions, rank_ordered=rank_ordered)
            _write(memory, step.target, value)
    results = [_result(part, memory) for part, memory in zip(parts, memories, strict=True)]
    if parts[0].collective is Collective.ALL_GATHER:
        _check_gathered(parts, results)
    else:
        _check_reduced(parts, results, expressions)


def _read(part: Part, index: int, memory: Memory, region: Region) -> Value:
    if region.buffer is not Buffer.INPUT:
        value = memory.get((region.buffer, region.offset, region.length))
        if value is None:
            raise fault(part, index, f"reads {region} before anything was produced there")
        return value
    overwritten = (Buffer.OUTPUT, region.offset, region.length) in memory
    if overwritten and part.collective is Collective.ALL_REDUCE:
        raise fault(part, index, f"reads {region} after OUTPUT, maybe the same memory, was written there")
    return part.rank, region.offset


def _write(memory: Memory, region: Region, value: Value) -> None:
    memory[region.buffer, region.offset, region.length] = value


def _combine(
    part: Part, index: int, step: Combine, memory: Memory, expressions: Expressions, *, rank_ordered: bool
) -> Value:
    values = [_read(part, index, memory, region) for region in step.inputs]
    if part.collective is Collective.ALL_GATHER and (len(values) > 1 or step.final):
        raise fault(part, index, "an all_gather copies; it combines nothing and nothing is final")
    position = values[0][1]
    for value, region in zip(values, step.inputs, strict=True):
        if value[1] != position:
            text = f"adds byte {value[1]} of the vector (from {region}) to byte {position}"
            raise fault(part, index, text)
    if len(values) == 1 and not step.final:
        return values[0]
    inputs = tuple(value[0] for value in values)
    if rank_ordered and step.final and inputs != tuple(range(part.size)):
        raise _order_fault(part, index, inputs, expressions)
    try:
        return expressions.combine(inputs, step.final), position
    except ValueError as problem:
        raise fault(part, index, str(problem)) from None


def _order_fault(part: Part, index: int, inputs: tuple[int, ...], expressions: Expressions) -> PlanError:
    """A family that promises rank order got something else; say first if it is worse than an order."""
    try:
        expressions.combine(inputs, True)
    except ValueError as problem:
        return fault(part, index, str(problem))
    order = [_ranks(expressions.members[each]) for each in inputs]
    return fault(part, index, f"contributions are not combined in rank order, but in the order {order}")


def _result(part: Part, memory: Memory) -> list[tuple[Region, Value]]:
    """What OUTPUT holds at the end, in order and without a gap."""
    held = [(Region(*key), value) for key, value in memory.items() if key[0] is Buffer.OUTPUT]
    held.sort(key=lambda entry: entry[0].offset)
    ends = [region.offset + region.length for region, _ in held]
    starts = [region.offset for region, _ in held]
    for end, start in zip([0, *ends], [*starts, part.output_bytes], strict=True):
        if end != start:
            missing = Region(Buffer.OUTPUT, end, start - end)
            raise PlanError(f"rank {part.rank}: nothing is written to {missing}")
    return held


def _check_gathered(parts: Sequence[Part], results: Sequence[list[tuple[Region, Value]]]) -> None:
    starts = list(accumulate((part.input_bytes for part in parts), initial=0))
    for part, result in zip(parts, results, strict=True):
        for region, (source, position) in result:
            home = starts[source] + position
            if home != region.offset:
                text = f"{region} gets byte {position} of rank {source}, which belongs to byte {home}"
                raise PlanError(f"rank {part.rank}: {text}")


def _check_reduced(
    parts: Sequence[Part], results: Sequence[list[tuple[Region, Value]]], expressions: Expressions
) -> None:
    """All results complete and in place; where all ranks have the same result, also in the same order."""
    everywhere = parts[0].collective is Collective.ALL_REDUCE
    starts = [0] * len(parts)
    if not everywhere:
        starts = list(accumulate((part.output_bytes for part in parts), initial=0))
    reference: list[tuple[int, int]] | None = None
    for part, result in zip(parts, results, strict=True):
        spans: list[tuple[int, int]] = []  # (first byte, expression), neighbours of one expression merged
        for region, (expression, position) in result:
            if not expressions.final[expression]:
                lacking = _ranks(expressions.everyone & ~expressions.members[expression])
                text = f"lacks rank {lacking}" if lacking else "was never made final"
                raise PlanError(f"rank {part.rank}: the result in {region} {text}")
            home = starts[part.rank] + region.offset
            if position != home:
                text = f"{region} gets byte {position} of the vector, not byte {home}"
                raise PlanError(f"rank {part.rank}: {text}")
            if not spans or spans[-1][1] != expression:
                spans.append((position, expression))
        if everywhere:
            reference = spans if reference is None else reference
            _check_same_order(part.rank, spans, parts[0].rank, reference)


def _check_same_order(
    rank: int, spans: list[tuple[int, int]], other: int, reference: list[tuple[int, int]]
) -> None:
    if spans != reference:
        pairs = zip_longest(spans, reference)
        at = min(span[0] for span in next(pair for pair in pairs if pair[0] != pair[1]) if span)
        raise PlanError(
            f"rank {rank}: from byte {at} of the result on contributions are combined in another way than on"
            f" rank {other}: not bit-identical"
        )


def _ranks(members: int) -> str:
    return ", ".join(str(rank) for rank in range(members.bit_length()) if members >> rank & 1)
