"""Which Part of which Plan an operation runs, cached: choosing, building and checking it happens once.

Ready Parts are looked up by everything that decides about them. Old ones are dropped when together they
have too many steps.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tailcut import _native
from tailcut.errors import Misuse
from tailcut.schedule import FAMILIES, Choice, Crossover, choose, family_number, transpose
from tailcut.transport.endpoint import native_part
from tailcut.types import Collective, DType, ReduceOp

MAX_STEPS = 25_000  # of all cached Parts together: about 8 MB; more in large groups, whose Parts are long
STEPS_PER_RANK = 400  # so much more for each rank of the group: a hundred MB with 1,000 ranks
MAX_ROTATIONS = 16  # different owners of a shard, by tag

_Key = tuple[int, int, int, int, str | None]


@dataclass(slots=True)
class Ready:
    """A Part in native form, with what the engine announces about it."""

    part: _native.Part
    family: int  # number under which ranks announce it
    steps: int


@dataclass(slots=True)
class Entry:
    """All rotations of one Plan."""

    choice: Choice
    rotations: int  # how many there are; only the transpose all_reduce has more than one
    ready: dict[int, Ready] = field(default_factory=dict)


class Plans:
    """The Plans of one rank in one group. Not for several threads at once: the group holds its lock."""

    def __init__(self, *, rank: int, size: int, algorithm: str, crossover: Crossover) -> None:
        self._rank, self._size, self._algorithm = rank, size, algorithm
        self.crossover = crossover
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        self._steps = 0

    def get(
        self,
        collective: Collective,
        count: int,
        dtype: DType,
        op: ReduceOp,
        schedule: str | None,
        tag: int,
    ) -> tuple[Entry, Ready]:
        """The Part for an operation; `tag` rotates which rank owns which shard, the same on all ranks."""
        key: _Key = (collective, count, dtype, op, schedule)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._enter(collective, count, dtype, op, schedule)
        rotation = tag % entry.rotations
        ready = entry.ready.get(rotation)
        if ready is None:
            ready = self._build(entry, collective, count, dtype, rotation)
            self._drop_old()
        self._entries.move_to_end(key)
        return entry, ready

    def forget(self, crossover: Crossover) -> None:
        """Chooses anew from now on."""
        self.crossover = crossover
        self._entries.clear()
        self._steps = 0

    def _enter(
        self, collective: Collective, count: int, dtype: DType, op: ReduceOp, schedule: str | None
    ) -> Entry:
        choice = self._choose(collective, count, dtype, op, schedule)
        rotates = choice.family == transpose.FAMILY and collective is Collective.ALL_REDUCE
        return Entry(choice, min(self._size, MAX_ROTATIONS) if rotates else 1)

    def _choose(
        self, collective: Collective, count: int, dtype: DType, op: ReduceOp, schedule: str | None
    ) -> Choice:
        if schedule is not None:
            return Choice(schedule, "the call asked for it")
        pinned = self._algorithm
        if pinned == "auto" or collective is not Collective.ALL_REDUCE:
            return choose(collective, self._size, count, dtype.itemsize, dtype, op, self.crossover)
        if pinned == "ring" and dtype.half:
            why = f"algorithm is set to ring, which would round {dtype.name.lower()} at every hop"
            return Choice(transpose.FAMILY, why)
        return Choice(pinned, f"algorithm is set to {pinned}")

    def _build(self, entry: Entry, collective: Collective, count: int, dtype: DType, rotation: int) -> Ready:
        family = entry.choice.family
        # Over more ranks than rotations, those used lie evenly spread.
        turned = rotation * (self._size // entry.rotations)
        part = FAMILIES[family](
            collective=collective,
            size=self._size,
            rank=self._rank,
            count=count,
            itemsize=dtype.itemsize,
            rotation=turned,
        )
        ready = Ready(native_part(part, dtype.itemsize), family_number(family), len(part.steps))
        entry.ready[rotation] = ready
        self._steps += ready.steps
        return ready

    def _drop_old(self) -> None:
        while self._steps > MAX_STEPS + STEPS_PER_RANK * self._size and len(self._entries) > 1:
            _, entry = self._entries.popitem(last=False)
            self._steps -= sum(ready.steps for ready in entry.ready.values())


def can_serve(schedule: object, collective: Collective, dtype: DType) -> bool:
    """Whether the caller asked for a family, which can serve; False leaves the choice to us."""
    if schedule == "auto":
        return False
    if not isinstance(schedule, str) or schedule not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise Misuse(f"there is no schedule {schedule!r}; known: auto, {known}", reason="argument")
    if collective is not Collective.ALL_REDUCE and schedule != transpose.FAMILY:
        name = collective.name.lower()
        raise Misuse(f"{name} has only the schedule {transpose.FAMILY}, not {schedule}", reason="argument")
    if schedule == "ring" and dtype.half:
        what = f"a ring would round {dtype.name.lower()} sums at every hop; take small or transpose"
        raise Misuse(what, reason="argument")
    return True
