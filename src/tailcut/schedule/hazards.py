"""No run of a Plan reads or overwrites memory at the wrong moment.

Two accesses of one byte, of which one writes, must be ordered by causality. Causality keeps the position
within a step (causality.py), so it can order only accesses of the very same region; a written region must
therefore not overlap any other region in use. What is left is to order the accesses of each region.

A Send reads its source until its receiver has the bytes (it may have to send them again); a Recv writes its
target from the moment its Send may run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.schedule.causality import Causality, fault
from tailcut.schedule.plan import Buffer, Combine, Part, PlanError, Recv, Region, Send
from tailcut.types import Collective


class Access(NamedTuple):
    """One step's use of a region."""

    node: int
    step: int  # at the rank whose memory it is
    region: Region
    writes: bool


# The accesses to each (memory, offset, length) at one rank, causes before effects.
Space = dict[tuple[int, int, int], list[Access]]


def check_hazards(parts: Sequence[Part], causality: Causality) -> None:
    """Raises PlanError for two accesses that some run could make in the wrong order.

    What is read too early comes first: it is often the reason why something else cannot be proven.
    """
    unproven: PlanError | None = None
    for part, space in zip(parts, _accesses(parts, causality), strict=True):
        _check_overlaps(part, space)
        for accesses in space.values():
            found = _unordered(accesses, causality) if len(accesses) > 1 else None
            if found and found.early:
                raise _too_early(part, found)
            if found and not unproven:
                unproven = _too_late(part, found)
    if unproven:
        raise unproven


def _accesses(parts: Sequence[Part], causality: Causality) -> list[Space]:
    same = parts[0].collective is Collective.ALL_REDUCE  # INPUT and OUTPUT may be the same memory
    memory = {Buffer.INPUT: 0, Buffer.OUTPUT: 0 if same else 1, Buffer.STAGE: 2}
    spaces: list[Space] = [{} for _ in parts]

    def note(rank: int, region: Region, node: int, index: int, writes: bool) -> None:
        key = (memory[region.buffer], region.offset, region.length)
        spaces[rank].setdefault(key, []).append(Access(node, index, region, writes))

    for number in causality.order:
        node = causality.nodes[number]
        step = parts[node.rank].steps[node.step]
        if isinstance(step, Send):
            recv = parts[node.to_rank].steps[node.to_step]
            assert isinstance(recv, Recv)
            note(node.rank, step.source, number, node.step, False)
            note(node.to_rank, recv.target, number, node.to_step, True)
        else:
            assert isinstance(step, Combine)  # no node stands at a Recv
            for region in step.inputs:
                note(node.rank, region, number, node.step, False)
            note(node.rank, step.target, number, node.step, True)
    return spaces


def _check_overlaps(part: Part, space: Space) -> None:
    """Sweeps over the regions by offset: a written one must be alone, or identical with the other."""
    farthest: Access | None = None  # of all regions so far in this memory, the one that ends last
    farthest_written: Access | None = None
    memory = -1
    for key in sorted(space):
        if key[0] != memory:
            memory, farthest, farthest_written = key[0], None, None
        first = space[key][0]
        written = next((access for access in space[key] if access.writes), None)
        if farthest and written and _end(farthest) > key[1]:
            raise _overlap(part, written, farthest)
        if farthest_written and _end(farthest_written) > key[1]:
            raise _overlap(part, farthest_written, first)
        if not farthest or _end(first) > _end(farthest):
            farthest = first
        if written and (not farthest_written or _end(written) > _end(farthest_written)):
            farthest_written = written


def _end(access: Access) -> int:
    return access.region.offset + access.region.length


def _overlap(part: Part, writer: Access, other: Access) -> PlanError:
    text = f"overlaps {other.region} of step {other.step} ({part.steps[other.step]}): the same region or none"
    return fault(part, writer.step, f"writes {writer.region}, which {text}")


class Unordered(NamedTuple):
    """Two accesses of a region that nothing orders."""

    one: Access
    other: Access
    early: bool  # one reads what the other should have produced; else one overwrites what the other needs


def _unordered(accesses: list[Access], causality: Causality) -> Unordered | None:
    """Orders writes among each other and every read between two writes; the rest follows step by step."""
    write: Access | None = None
    reads: list[Access] = []  # since that write
    for access in accesses:
        if not access.writes:
            if write and not causality.precedes(write.node, access.node):
                return Unordered(access, write, access.region.buffer is not Buffer.INPUT)
            reads.append(access)
            continue
        for earlier in reads or ([write] if write else []):
            if earlier.node != access.node and not causality.precedes(earlier.node, access.node):
                needs_it = not earlier.writes and not write and earlier.region.buffer is not Buffer.INPUT
                return Unordered(earlier, access, needs_it)
        write, reads = access, []
    return None


def _too_early(part: Part, found: Unordered) -> PlanError:
    reader, writer = found.one, found.other
    text = f"may read {reader.region} before step {writer.step} ({part.steps[writer.step]}) has written it"
    return fault(part, reader.step, text)


def _too_late(part: Part, found: Unordered) -> PlanError:
    needing, writer = (found.one, found.other) if found.other.writes else (found.other, found.one)
    step = part.steps[needing.step]
    text = f"overwrites {writer.region}, which step {needing.step} ({step})"
    if needing.writes:
        return fault(part, writer.step, f"{text} writes too, sooner or later")
    why = ": nothing proves that the peer has it" if isinstance(step, Send) else ""
    return fault(part, writer.step, f"{text} may still need{why}")
