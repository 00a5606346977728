"""Every single edit of a Plan: one step or one field changed, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedule.plans import Plan, edit, with_steps
from tailcut.schedule import Buffer, Combine, Recv, Region, Send, Step


def mutants(parts: Plan, rank: int, itemsize: int) -> Iterator[tuple[str, Plan]]:
    """(what was edited, edited Plan) for all edits of one rank's Part."""
    for name in ("input_bytes", "output_bytes", "stage_bytes", "stages", "size", "rank"):
        for delta in (-itemsize, -1, 1, itemsize):
            part = replace(parts[rank], **{name: getattr(parts[rank], name) + delta})
            yield f"part {name}", (*parts[:rank], part, *parts[rank + 1 :])
    for index in range(len(parts[rank].steps)):
        yield "drop step", _drop(parts, rank, index)
        yield "repeat step", with_steps(parts, rank, (*parts[rank].steps, parts[rank].steps[index]))
        for other in range(index):
            yield "swap steps", _swap(parts, rank, other, index)
        yield from _edits(parts, rank, index, itemsize)


def _edits(parts: Plan, rank: int, index: int, itemsize: int) -> Iterator[tuple[str, Plan]]:
    step = parts[rank].steps[index]
    name = type(step).__name__.lower()
    for delta in (-1, 1):
        yield f"{name} stage", edit(parts, rank, index, stage=step.stage + delta)
    if isinstance(step, Combine):
        yield f"{name} final", edit(parts, rank, index, final=not step.final)
        yield from _input_edits(parts, rank, index, step, itemsize)
    else:
        for peer in range(-1, len(parts) + 1):
            if peer != step.peer:
                yield f"{name} peer", edit(parts, rank, index, peer=peer)
        for delta in (-1, 1, 2):
            yield f"{name} transfer", edit(parts, rank, index, transfer=step.transfer + delta)
            yield f"{name} round", edit(parts, rank, index, round=step.round + delta)
    if isinstance(step, Send):
        yield f"{name} retain", edit(parts, rank, index, retain=not step.retain)
        for region in _regions(step.source, _used(parts, rank), itemsize):
            yield f"{name} source", edit(parts, rank, index, source=region)
    else:
        for region in _regions(step.target, _used(parts, rank), itemsize):
            yield f"{name} target", edit(parts, rank, index, target=region)
    if not isinstance(step, Recv):
        for after in _afters(step.after, len(parts[rank].steps)):
            yield f"{name} after", edit(parts, rank, index, after=after)


def _input_edits(
    parts: Plan, rank: int, index: int, step: Combine, itemsize: int
) -> Iterator[tuple[str, Plan]]:
    inputs = step.inputs
    for at, region in enumerate(inputs):
        yield "combine input dropped", edit(parts, rank, index, inputs=inputs[:at] + inputs[at + 1 :])
        yield "combine input repeated", edit(parts, rank, index, inputs=(*inputs, region))
        for other in range(at):
            swapped = list(inputs)
            swapped[at], swapped[other] = swapped[other], swapped[at]
            yield "combine inputs swapped", edit(parts, rank, index, inputs=tuple(swapped))
        for changed in _regions(region, _used(parts, rank), itemsize):
            edited = (*inputs[:at], changed, *inputs[at + 1 :])
            yield "combine input", edit(parts, rank, index, inputs=edited)


def _regions(region: Region, used: set[Region], itemsize: int) -> set[Region]:
    """Shifted, longer, shorter, in another buffer, or another region of this Part."""
    found = {region.within(buffer) for buffer in Buffer} | used
    for delta in (-itemsize, -1, 1, itemsize):
        found.add(Region(region.buffer, region.offset + delta, region.length))
        found.add(Region(region.buffer, region.offset, region.length + delta))
        found.add(Region(region.buffer, region.offset + delta, region.length - delta))
    return found - {region}


def _used(parts: Plan, rank: int) -> set[Region]:
    used: set[Region] = set()
    for step in parts[rank].steps:
        if isinstance(step, Combine):
            used.update(step.inputs)
        used.add(step.source if isinstance(step, Send) else step.target)
    return used


def _afters(after: tuple[int, ...], steps: int) -> set[tuple[int, ...]]:
    shorter = {after[:at] + after[at + 1 :] for at in range(len(after))}
    longer = {(*after, other) for other in range(-1, steps + 1)}
    changed = {(*less, other) for less in shorter for other in range(steps)}
    return (shorter | longer | changed) - {after}


def _drop(parts: Plan, rank: int, index: int) -> Plan:
    """Without one step; nobody waits for it any more."""
    places = {old: old - (old > index) for old in range(len(parts[rank].steps)) if old != index}
    steps = [_moved(step, places) for at, step in enumerate(parts[rank].steps) if at != index]
    return with_steps(parts, rank, steps)


def _swap(parts: Plan, rank: int, one: int, two: int) -> Plan:
    """Two steps change places in the list; who waits for whom stays."""
    places = {old: old for old in range(len(parts[rank].steps))} | {one: two, two: one}
    steps = [_moved(step, places) for step in parts[rank].steps]
    steps[one], steps[two] = steps[two], steps[one]
    return with_steps(parts, rank, steps)


def _moved(step: Step, places: dict[int, int]) -> Step:
    if isinstance(step, Recv):
        return step
    return replace(step, after=tuple(places[each] for each in step.after if each in places))
