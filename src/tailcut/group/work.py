"""An operation in flight, and what came of it: an Outcome, or an error that names who caused it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from tailcut import _native
from tailcut.errors import (
    CollectiveTimeout,
    Facts,
    GroupClosed,
    Mismatch,
    Misuse,
    PeerLost,
    TailcutError,
    duration_text,
    ranks_text,
)
from tailcut.outcome import Outcome
from tailcut.schedule import FAMILIES, Choice
from tailcut.types import Collective, DType, ReduceOp

LONGEST_S = 4e9  # more than a hundred years, and still in range as nanoseconds in 64 bits
_KINDS: dict[str, type[TailcutError]] = {
    "peer_dead": PeerLost,
    "mismatch": Mismatch,
    "timeout": CollectiveTimeout,
    "closed": GroupClosed,
    "cancelled": GroupClosed,
}


class Identity(NamedTuple):
    """Which operation of which group, for texts."""

    rank: int
    group: int
    collective: str
    tag: int
    sequence: int
    elements: int
    choice: Choice


class Holder(Protocol):
    """Who keeps arrays alive while operations use them."""

    def release(self, work: Work) -> None:
        """The operation is over."""


class Work:
    """An operation that was started. It runs whether or not anybody waits."""

    __slots__ = ("_error", "_holder", "_operation", "_outcome", "identity", "keep")

    def __init__(
        self,
        identity: Identity,
        operation: _native.Operation | None,
        keep: object,
        holder: Holder | None,
        outcome: Outcome | None = None,
    ) -> None:
        self.identity = identity
        self.keep = keep  # the caller's arrays
        self._operation = operation
        self._holder = holder
        self._outcome = outcome
        self._error: TailcutError | None = None

    def done(self) -> bool:
        """Whether it is over, well or not; `wait` then returns or raises at once."""
        return self._operation is None or self._operation.done

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until it is over, driving the engine from this thread; `timeout` in seconds.

        When the time is up the operation goes on: the error's reason is `wait_expired`.
        """
        operation = self._operation
        if operation is not None:
            limit_ns = -1 if timeout is None else nanoseconds(timeout)
            try:
                over = operation.wait(limit_ns)
            except BaseException:  # Ctrl-C, or a signal handler of the caller that raised
                operation.cancel()  # the arrays are the caller's again, and the other ranks are told
                self._finish(operation)
                raise
            if not over:
                what = f"not over after {timeout} s of waiting"
                raise CollectiveTimeout(what, reason="wait_expired", facts=_facts(self.identity))
            self._finish(operation)
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise TailcutError("an operation ended without a result", reason="internal")
        return self._outcome

    def _finish(self, operation: _native.Operation) -> None:
        """The engine no longer touches the arrays. Harmless when two threads come here."""
        result = operation.result()
        if result is None:
            return
        if result["code"] == "none":
            self._outcome = _outcome(self.identity, result)
        else:
            self._error = failure(self.identity, result)
        self._operation = None
        self.keep = None
        if self._holder is not None:
            self._holder.release(self)
            self._holder = None


def nanoseconds(seconds: float) -> int:
    """A time-out of the caller in nanoseconds."""
    try:
        if seconds > 0:
            return max(1, round(min(seconds, LONGEST_S) * 1_000_000_000))
    except (TypeError, ValueError):
        pass
    raise Misuse(f"a timeout must be a number of seconds above 0, not {seconds!r}", reason="argument")


def local_outcome(identity: Identity) -> Outcome:
    """The report of an operation in a group of one, where there is nothing to send."""
    return Outcome.of(
        collective=identity.collective,
        tag=identity.tag,
        sequence=identity.sequence,
        family=identity.choice.family,
        why=identity.choice.why,
        count=identity.elements,
        elapsed_ns=0,
        received_bytes=0,
        expected_bytes=0,
        resent_packets=0,
        lags_ns=(0,),
    )


def _outcome(identity: Identity, result: Mapping[str, Any]) -> Outcome:
    return Outcome.of(
        collective=identity.collective,
        tag=identity.tag,
        sequence=identity.sequence,
        family=identity.choice.family,
        why=identity.choice.why,
        count=identity.elements,
        elapsed_ns=result["elapsed_ns"],
        received_bytes=result["received_bytes"],
        expected_bytes=result["expected_bytes"],
        resent_packets=result["resent_packets"],
        lags_ns=_lags(identity.rank, result["lags_ns"]),
    )


def _lags(rank: int, after_us: Sequence[int | None]) -> tuple[int | None, ...]:
    """From times relative to our own entry to times after the first entry that was seen."""
    relative = list(after_us)
    relative[rank] = 0
    first = min([time for time in relative if time is not None])
    return tuple([None if time is None else time - first for time in relative])


# ---- errors


def _facts(identity: Identity, **more: Any) -> Facts:
    return Facts(
        rank=identity.rank,
        group=identity.group,
        collective=identity.collective,
        tag=identity.tag,
        sequence=identity.sequence,
        **more,
    )


def failure(identity: Identity, result: Mapping[str, Any]) -> TailcutError:
    """The error for what the engine reports about an operation that did not succeed."""
    code: str = result["code"]
    culprits = tuple(result["culprits"])
    facts = _facts(
        identity,
        stage=result["stage"],
        elapsed_ns=result["elapsed_ns"],
        received_bytes=result["received_bytes"],
        expected_bytes=result["expected_bytes"],
        culprits=culprits,
        waiting=tuple(rank for rank in result["waiting"] if rank not in culprits),
    )
    reporter: int = result["reporter"]
    found = f" (rank {reporter} told us)" if reporter not in (-1, identity.rank, *culprits) else ""
    kind = _KINDS.get(code, TailcutError)
    return kind(f"{_what(code, identity, result, culprits)}{found}", reason=code, facts=facts)


def _what(code: str, identity: Identity, result: Mapping[str, Any], culprits: tuple[int, ...]) -> str:
    who = ranks_text(culprits)
    has, leaves = ("has", "was") if len(culprits) == 1 else ("have", "were")
    if code == "peer_dead":
        return f"{who} {leaves} lost: not a word for longer than liveness_s"
    if code == "mismatch":
        return _difference(result["ours"], result["theirs"], culprits)
    if code == "timeout":
        after = duration_text(result["elapsed_ns"])
        if culprits:
            return f"timed out, {who} {has} not entered it within {after}"
        return f"timed out, all ranks entered it but data was still missing after {after}"
    if identity.rank in culprits or not culprits:
        return "given up here" if code == "cancelled" else "the group was closed here"
    if code == "closed":
        return f"{who} {has} left the group"
    if code == "cancelled":
        return f"{who} {has} given it up"
    return f"{who} no longer {has} data that is needed here"


def _difference(ours: Mapping[str, int], theirs: Mapping[str, int], culprits: tuple[int, ...]) -> str:
    where = ranks_text(culprits) if culprits else "another rank"
    differences = []
    for key, name in (
        ("collective", "collective"),
        ("count", "length"),
        ("dtype", "dtype"),
        ("op", "op"),
        ("family", "schedule"),
    ):
        if ours[key] != theirs[key]:
            here, there = _value(key, ours[key]), _value(key, theirs[key])
            differences.append(f"{name} is {here} here and {there} on {where}")
    said = ", ".join(differences) or f"{where} called something else"
    return f"the ranks called different operations: {said}"


def _value(key: str, value: int) -> str:
    """The name of a number in an announcement; those from the network may mean nothing."""
    if key == "count":
        return str(value)
    if key == "family":
        return list(FAMILIES)[value] if value < len(FAMILIES) else f"unknown ({value})"
    kinds: dict[str, type[IntEnum]] = {"collective": Collective, "dtype": DType, "op": ReduceOp}
    try:
        return kinds[key](value).name.lower()
    except ValueError:
        return f"unknown ({value})"
