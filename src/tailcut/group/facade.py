"""The group: its members, the identity of its operations, its collectives, sync and async.

An operation is (tag, sequence within the tag). Calls with one tag must come in the same order on all ranks;
different tags are independent. A call that is refused with Misuse has taken no sequence number.
"""

from __future__ import annotations

import operator
import threading
import weakref
from typing import Any

import numpy as np

from tailcut.config import Config
from tailcut.errors import Facts, GroupClosed, Misuse
from tailcut.group.arrays import Described, bounds, describe
from tailcut.group.plans import Plans, can_serve
from tailcut.group.work import Identity, Work, local_outcome, nanoseconds
from tailcut.outcome import Outcome
from tailcut.schedule import Choice, Crossover
from tailcut.schedule.plan import shard
from tailcut.transport.endpoint import SECOND_NS, Link
from tailcut.types import Collective, ReduceOp

MAX_TAG = 0xFEFF  # the tags above are the group's own
BARRIER_TAG = 0xFFFF
TUNING_TAG = 0xFFFE
_OPS = {op.name.lower(): op for op in ReduceOp}
_ALONE = Choice("transpose", "a group of one has nothing to exchange")


class Group:
    """Ranks that run collectives together, made by `tailcut.connect`. Any thread may call any method."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        id: int,
        config: Config,
        crossover: Crossover,
        link: Link | None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.id = id  # 32 bits, the same on all ranks
        self.config = config  # with the origin of every value
        self._link = link
        self._plans = Plans(rank=rank, size=size, algorithm=config.algorithm, crossover=crossover)
        self._timeout_ns = round(config.timeout_s * SECOND_NS)
        self._lock = threading.Lock()
        self._sequences: dict[int, int] = {}
        self._running = _Running()
        self._closed = False
        linger_ns = round(config.linger_s * SECOND_NS)
        # Also at the end of the process: peers may still need what this rank was the last to send.
        self._finalizer = weakref.finalize(self, _close, link, self._running, linger_ns)

    # ---- collectives

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        tag: int = 0,
        timeout: float | None = None,
        schedule: str | None = None,
    ) -> Outcome:
        """Replaces the array, on every rank, by the reduction of the arrays of all ranks.

        `op` is sum, avg, min, max or prod; `timeout` in seconds; `schedule` small, ring or transpose
        instead of the group's choice.
        """
        return self.all_reduce_async(array, op, tag=tag, timeout=timeout, schedule=schedule).wait()

    def all_reduce_async(
        self,
        array: Any,
        op: str = "sum",
        *,
        tag: int = 0,
        timeout: float | None = None,
        schedule: str | None = None,
    ) -> Work:
        """As all_reduce, without waiting: the array must be left alone until the Work is done."""
        described = describe(array, "array")
        if not described.writable:
            raise _read_only("array")
        return self._start(
            Collective.ALL_REDUCE, described, described, described.elements, op, tag, timeout, schedule, array
        )

    def reduce_scatter(
        self, input: Any, output: Any, op: str = "sum", *, tag: int = 0, timeout: float | None = None
    ) -> Outcome:
        """Gives each rank its shard of the reduced inputs; the first `length % size` ranks get one more."""
        return self.reduce_scatter_async(input, output, op, tag=tag, timeout=timeout).wait()

    def reduce_scatter_async(
        self, input: Any, output: Any, op: str = "sum", *, tag: int = 0, timeout: float | None = None
    ) -> Work:
        """As reduce_scatter, without waiting."""
        whole, own = describe(input, "input"), describe(output, "output")
        self._check_pair(whole, own, whole=whole, own=own, own_name="output")
        return self._start(
            Collective.REDUCE_SCATTER, whole, own, whole.elements, op, tag, timeout, None, (input, output)
        )

    def all_gather(self, input: Any, output: Any, *, tag: int = 0, timeout: float | None = None) -> Outcome:
        """Fills every rank's output with the inputs of all ranks, each the rank's shard of the output."""
        return self.all_gather_async(input, output, tag=tag, timeout=timeout).wait()

    def all_gather_async(
        self, input: Any, output: Any, *, tag: int = 0, timeout: float | None = None
    ) -> Work:
        """As all_gather, without waiting."""
        own, whole = describe(input, "input"), describe(output, "output")
        self._check_pair(own, whole, whole=whole, own=own, own_name="input")
        return self._start(
            Collective.ALL_GATHER, own, whole, whole.elements, "sum", tag, timeout, None, (input, output)
        )

    def barrier(self, timeout: float | None = None) -> Outcome:
        """Returns when all ranks have called it."""
        flag = describe(np.zeros(1, np.uint8), "flag")
        return self._start(
            Collective.ALL_REDUCE, flag, flag, 1, "max", BARRIER_TAG, timeout, "small", None, "barrier"
        ).wait()

    # ---- for the start of the group

    def tuning_all_reduce(self, array: Any, op: str, schedule: str) -> None:
        """An all_reduce under a tag of the group's own."""
        described = describe(array, "array")
        self._start(
            Collective.ALL_REDUCE,
            described,
            described,
            described.elements,
            op,
            TUNING_TAG,
            None,
            schedule,
            None,
            "tuning",
        ).wait()

    def take_crossover(self, crossover: Crossover) -> None:
        """From now on schedules are chosen by it; the same on all ranks before their first operation."""
        with self._lock:
            self._plans.forget(crossover)

    # ---- what is known

    @property
    def crossover(self) -> Crossover:
        """From which size on which schedule is taken; the same on all ranks."""
        return self._plans.crossover

    @property
    def closed(self) -> bool:
        """Whether this rank has closed the group."""
        return self._closed

    def counters(self) -> dict[str, int]:
        """Packets sent, received, repaired and dropped, the latter by reason."""
        channel = self._link.channel if self._link else None
        return channel.counters() if channel else {}

    def peers(self) -> list[dict[str, Any]]:
        """By rank: round-trip times, window, losses, when last heard."""
        channel = self._link.channel if self._link else None
        return channel.peers() if channel else []

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<tailcut group {self.id:08x}: rank {self.rank} of {self.size}{state}>"

    # ---- the end

    def close(self, linger: float | None = None) -> bool:
        """Leaves the group once peers have what they need, at most after `linger` seconds (default linger_s).

        True if they all had it in time. Operations in flight are finished first, if that time suffices.
        """
        with self._lock:
            self._closed = True
            first = self._finalizer.detach() is not None
        if not first or self._link is None:
            return True
        linger_ns = round(self.config.linger_s * SECOND_NS) if linger is None else round(linger * SECOND_NS)
        return self._link.close(max(0, linger_ns))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside

    def _start(
        self,
        collective: Collective,
        given: Described,
        wanted: Described,
        count: int,
        op: str,
        tag: int,
        timeout: float | None,
        schedule: str | None,
        keep: object,
        name: str | None = None,
    ) -> Work:
        reduction = _OPS.get(op) if isinstance(op, str) else None
        if reduction is None:
            raise Misuse(f"there is no op {op!r}; known: {', '.join(_OPS)}", reason="argument")
        if schedule is not None and not can_serve(schedule, collective, given.dtype):
            schedule = None
        if name is None:
            name, tag = _COLLECTIVES[collective], _checked_tag(tag)
        timeout_ns = self._timeout_ns if timeout is None else nanoseconds(timeout)
        link = self._link
        if link is None:
            return self._alone(name, tag, count, given, wanted)
        channel = link.channel  # looked at before the lock, which a fork may have left held
        if channel is None or self._closed:
            raise self._closed_error()
        with self._lock:
            sequence = self._sequences.get(tag, 0)
            entry, ready = self._plans.get(collective, count, given.dtype, reduction, schedule, tag)
            try:
                operation = channel.start(
                    ready.part,
                    tag,
                    sequence,
                    collective,
                    given.dtype,
                    reduction,
                    count,
                    ready.family,
                    given.memory,
                    wanted.memory,
                    timeout_ns,
                )
            except RuntimeError:
                raise self._closed_error() from None
            self._sequences[tag] = (sequence + 1) & 0xFFFFFFFF
            identity = Identity(self.rank, self.id, name, tag, sequence, count, entry.choice)
            work = Work(identity, operation, (given.memory, wanted.memory, keep), self._running)
            self._running.add(work)
        return work

    def _alone(self, name: str, tag: int, count: int, given: Described, wanted: Described) -> Work:
        """A group of one: its own contribution is the result."""
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if wanted is not given:
                np.copyto(wanted.memory.reshape(-1), given.memory.reshape(-1))
            sequence = self._sequences.get(tag, 0)
            self._sequences[tag] = sequence + 1
        identity = Identity(self.rank, self.id, name, tag, sequence, count, _ALONE)
        return Work(identity, None, None, None, local_outcome(identity))

    def _check_pair(
        self, source: Described, target: Described, *, whole: Described, own: Described, own_name: str
    ) -> None:
        """Input and output of the halves: one dtype, fitting lengths, no common memory but in place."""
        if not target.writable:
            raise _read_only("output")
        if source.dtype is not target.dtype:
            names = f"{source.dtype.name.lower()} and output {target.dtype.name.lower()}"
            raise Misuse(f"input holds {names}; they must be the same", reason="dtype")
        first, length = shard(whole.elements, self.size, self.rank)
        if own.elements != length:
            other = "input" if own_name == "output" else "output"
            what = f"{own_name} has {own.elements} elements; rank {self.rank}'s shard of the"
            raise Misuse(f"{what} {whole.elements} of {other} has {length}", reason="length")
        if not np.may_share_memory(own.memory, whole.memory):  # looks at bounds only, and both have no gaps
            return
        in_place = bounds(own)[0] == bounds(whole)[0] + first * own.dtype.itemsize
        if length and not (in_place and own_name == "input"):
            raise Misuse("input and output share memory", reason="argument")

    def _closed_error(self) -> GroupClosed:
        link = self._link
        what = "the group is closed"
        if not self._closed and link is not None and link.channel is None:
            what = "this process was forked; the group belongs to its parent"
        return GroupClosed(what, facts=self._facts())

    def _facts(self) -> Facts:
        return Facts(rank=self.rank, group=self.id)


class _Running:
    """Keeps arrays alive while operations use them, also those whose Work the caller has dropped."""

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}

    def add(self, work: Work) -> None:
        """Called with the group's lock held. Works that are over and were never waited for go here."""
        works = self._works
        while works:
            oldest = next(iter(works.values()), None)
            if oldest is None or not oldest.done():
                break
            works.pop(id(oldest), None)
        works[id(work)] = work

    def release(self, work: Work) -> None:
        """The operation is over."""
        self._works.pop(id(work), None)


def _close(link: Link | None, running: _Running, linger_ns: int) -> None:
    """The end of a group nobody closed: `running` lives until the engine has let go of its arrays."""
    if link is not None:
        link.close(linger_ns)


_COLLECTIVES = {collective: collective.name.lower() for collective in Collective}


def _checked_tag(tag: Any) -> int:
    try:
        number = operator.index(tag)
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_TAG:
        raise Misuse(f"a tag must be a whole number from 0 to {MAX_TAG}, not {tag!r}", reason="argument")
    return number


def _read_only(name: str) -> Misuse:
    return Misuse(f"{name} may not be written to", reason="read_only")
