"""A tiny executor of Plans on integers: finds out what a Plan does by doing it, in one random order per seed.

It shares no code with the checker. It is as unkind as the rules of a Plan allow: packets (one element each)
arrive in any order; a packet is read from the sender's memory at the moment it arrives, so whatever has
overwritten the source by then is what arrives; a Recv is written as soon as its Send may run; some steps are
starved until nothing else is left to do; memory that was never written holds garbage; once all Recvs and
Combines of a rank are done its memory turns to garbage at any moment, and only retained Sends are kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailcut.schedule import Buffer, Combine, Part, Recv, Region, Send, Step
from tailcut.types import Collective

Memory = dict[Buffer, list[int]]
Event = tuple[str, int, int, int]  # what, rank, step, block or packet


class Broken(Exception):
    """The Plan cannot be executed to its end."""


@dataclass(frozen=True)
class Arithmetic:
    """What Combine does: `two` combines two values, `final` is applied where a Combine is final."""

    two: Callable[[int, int], int]
    final: Callable[[int], int]


SUM = Arithmetic(two=lambda one, other: one + other, final=lambda value: value)
# Neither commutative nor associative, and final twice is not final once: shows every order and every slip.
TRACE = Arithmetic(
    two=lambda one, other: (one * 1_000_003 + other * 7 + 11) % (2**61 - 1),
    final=lambda value: (value * 5 + 3) % (2**61 - 1),
)


def execute(
    parts: Sequence[Part],
    inputs: Sequence[Sequence[int]],
    *,
    itemsize: int,
    seed: int,
    same_memory: bool = False,
    arithmetic: Arithmetic = SUM,
) -> list[list[int]]:
    """OUTPUT of every rank when it was done. `same_memory`: INPUT and OUTPUT are one array."""
    return _Run(parts, inputs, itemsize, seed, same_memory, arithmetic).to_the_end()


class _Run:
    def __init__(
        self,
        parts: Sequence[Part],
        inputs: Sequence[Sequence[int]],
        itemsize: int,
        seed: int,
        same_memory: bool,
        arithmetic: Arithmetic,
    ) -> None:
        self.parts, self.itemsize, self.arithmetic = parts, itemsize, arithmetic
        self.random = random.Random(seed)
        self.block = self.random.choice((1, 1, 2, 3, 1000))  # elements
        self.memory = [self._fresh(part, inputs[part.rank], same_memory) for part in parts]
        self.recv_of = self._pair()
        self.left = [[self._blocks(step) for step in part.steps] for part in parts]  # blocks not done yet
        self.packets: dict[tuple[int, int, int], set[int]] = {}  # missing ones, per block of a Recv
        self.kept: dict[tuple[int, int], list[int]] = {}  # what retained Sends still give after the end
        self.results: list[list[int] | None] = [None for _ in parts]
        self.events: list[Event] = []
        everything = [(rank, index) for rank, part in enumerate(parts) for index in range(len(part.steps))]
        starve = self.random.choice((0, 0, 1, 2, len(everything) // 2))
        self.starved = set(self.random.sample(everything, min(starve, len(everything))))

    def to_the_end(self) -> list[list[int]]:
        for rank, part in enumerate(self.parts):
            for index in range(len(part.steps)):
                self._enable(rank, index)
            self._maybe_done(rank)
        while self.events:
            what, rank, index, number = self._pick()
            if what == "send":
                self._send(rank, index, number)
            elif what == "packet":
                self._packet(rank, index, number)
            elif what == "combine":
                self._combine(rank, index, number)
            else:
                self._leave(rank)
        results = [result for result in self.results if result is not None]
        if len(results) < len(self.parts):
            raise Broken("deadlock")
        return results

    def _fresh(self, part: Part, given: Sequence[int], same_memory: bool) -> Memory:
        def garbage(size: int) -> list[int]:
            return [self.random.randrange(10**15, 10**16) for _ in range(-(-size // self.itemsize))]

        memory = {
            Buffer.INPUT: list(given),
            Buffer.OUTPUT: garbage(part.output_bytes),
            Buffer.STAGE: garbage(part.stage_bytes),
        }
        if same_memory:
            assert part.collective is Collective.ALL_REDUCE
            memory[Buffer.OUTPUT] = memory[Buffer.INPUT]
        return memory

    def _pair(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(rank, step) of each Send -> (rank, step) of its Recv."""
        places: dict[tuple[type, int, int, int], tuple[int, int]] = {}
        for rank, part in enumerate(self.parts):
            for index, step in enumerate(part.steps):
                if isinstance(step, Combine):
                    continue
                source, to = (rank, step.peer) if isinstance(step, Send) else (step.peer, rank)
                key = (type(step), source, to, step.transfer)
                if key in places:
                    raise Broken(f"ambiguous: {step}")
                places[key] = (rank, index)
        pairs = {}
        for (kind, source, to, transfer), place in places.items():
            other = places.get((Recv if kind is Send else Send, source, to, transfer))
            if other is None:
                raise Broken(f"no match: {self.parts[place[0]].steps[place[1]]}")
            if self._length(*place) != self._length(*other):
                raise Broken("unequal lengths")
            if kind is Send:
                pairs[place] = other
        return pairs

    def _pick(self) -> Event:
        chosen = self.random.randrange(len(self.events))
        if self.starved:
            for _ in range(20):  # then it is its turn
                if self.events[chosen][1:3] not in self.starved:
                    break
                chosen = self.random.randrange(len(self.events))
        self.events[chosen], self.events[-1] = self.events[-1], self.events[chosen]
        return self.events.pop()

    def _enable(self, rank: int, index: int) -> None:
        """Offers the blocks of a step that nothing holds back (any more) and that were not offered before."""
        step = self.parts[rank].steps[index]
        if isinstance(step, Recv):
            return
        waiting = set(self.left[rank][index])
        for earlier in step.after:
            if self._length(rank, earlier) != self._length(rank, index):
                raise Broken("waits for another length")
            waiting -= self.left[rank][earlier]
        what = "send" if isinstance(step, Send) else "combine"
        offered = {event[3] for event in self.events if event[:3] == (what, rank, index)}
        self.events += [(what, rank, index, block) for block in sorted(waiting - offered)]

    def _send(self, rank: int, index: int, block: int) -> None:
        self.left[rank][index].discard(block)
        length = self._length(rank, index)
        packets = range(block * self.block, min(length, (block + 1) * self.block))
        to_rank, to_index = self.recv_of[rank, index]
        self.packets[to_rank, to_index, block] = set(packets)
        self.events += [("packet", rank, index, packet) for packet in packets]

    def _packet(self, rank: int, index: int, packet: int) -> None:
        step = self.parts[rank].steps[index]
        assert isinstance(step, Send)
        kept = self.kept.get((rank, index))
        value = kept[packet] if kept is not None else self._cells(rank, step.source)[packet]
        to_rank, to_index = self.recv_of[rank, index]
        recv = self.parts[to_rank].steps[to_index]
        assert isinstance(recv, Recv)
        self._store(to_rank, recv.target, packet, value)
        block = packet // self.block
        missing = self.packets[to_rank, to_index, block]
        missing.discard(packet)
        if not missing:
            self._done(to_rank, to_index, block)

    def _combine(self, rank: int, index: int, block: int) -> None:
        step = self.parts[rank].steps[index]
        assert isinstance(step, Combine)
        inputs = [self._cells(rank, region) for region in step.inputs]
        length = self._length(rank, index)
        if not inputs or any(len(cells) != length for cells in inputs):
            raise Broken("no inputs, or not of the length of the target")
        for at in range(block * self.block, min(length, (block + 1) * self.block)):
            value = inputs[0][at]
            for cells in inputs[1:]:
                value = self.arithmetic.two(value, cells[at])
            self._store(rank, step.target, at, self.arithmetic.final(value) if step.final else value)
        self._done(rank, index, block)

    def _done(self, rank: int, index: int, block: int) -> None:
        self.left[rank][index].discard(block)
        for later, step in enumerate(self.parts[rank].steps):
            if not isinstance(step, Recv) and index in step.after:
                self._enable(rank, later)
        self._maybe_done(rank)

    def _maybe_done(self, rank: int) -> None:
        steps = self.parts[rank].steps
        if not any(
            left for left, step in zip(self.left[rank], steps, strict=True) if not isinstance(step, Send)
        ):
            self.events.append(("leave", rank, -1, -1))

    def _leave(self, rank: int) -> None:
        """The operation returns at this rank: the memory belongs to the caller again."""
        self.results[rank] = list(self.memory[rank][Buffer.OUTPUT])
        for index, step in enumerate(self.parts[rank].steps):
            if isinstance(step, Send) and step.retain:
                self.kept[rank, index] = self._cells(rank, step.source)
        for cells in self.memory[rank].values():
            cells[:] = [self.random.randrange(10**17, 10**18) for _ in cells]

    def _blocks(self, step: Step) -> set[int]:
        region = step.source if isinstance(step, Send) else step.target
        return set(range(-(-region.length // self.itemsize // self.block)))

    def _length(self, rank: int, index: int) -> int:
        if not 0 <= index < len(self.parts[rank].steps):
            raise Broken("no such step")
        step = self.parts[rank].steps[index]
        return (step.source if isinstance(step, Send) else step.target).length // self.itemsize

    def _cells(self, rank: int, region: Region) -> list[int]:
        first, beyond = self._range(rank, region)
        return self.memory[rank][region.buffer][first:beyond]

    def _store(self, rank: int, region: Region, at: int, value: int) -> None:
        self.memory[rank][region.buffer][self._range(rank, region)[0] + at] = value

    def _range(self, rank: int, region: Region) -> tuple[int, int]:
        if region.offset % self.itemsize or region.length % self.itemsize or region.length < 1:
            raise Broken(f"misaligned or empty: {region}")
        first, length = region.offset // self.itemsize, region.length // self.itemsize
        if first < 0 or first + length > len(self.memory[rank][region.buffer]):
            raise Broken(f"out of bounds: {region}")
        return first, first + length
