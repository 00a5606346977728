"""Every error tailcut raises: what happened, where, how far it had come, whose fault it is, and what to do.

One base class. Each error carries `facts` (see Facts) and a machine-readable `reason`; the reasons, and the
advice that goes with each, stand in ADVICE and are stable: programs may compare them, texts are for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# reason -> what to do. A reason is part of the interface; its advice may improve.
ADVICE = {
    # PeerLost
    "peer_dead": "Look at the host and the log of the named rank: it died, hung below Python, or lost its "
    "network. Raise liveness_s if ranks may be paused for longer.",
    # Mismatch
    "mismatch": "Make all ranks call the same collectives with the same dtype, length, op and schedule, "
    "in the same order for each tag.",
    # CollectiveTimeout
    "timeout": "Find out why the named ranks are late (they are alive), or raise timeout_s.",
    "wait_expired": "The operation still runs and still owns its arrays: wait again, or close the group.",
    # GroupClosed
    "closed": "Connect a new group; a closed one cannot be used again.",
    "cancelled": "Connect a new group; this one was given up while an operation ran.",
    # defects, reported rather than hidden
    "gone": "This is a defect of tailcut: please report it with this text.",
    "internal": "This is a defect of tailcut: please report it with this text.",
    # Misuse
    "dtype": "Convert the array to one of the supported dtypes.",
    "layout": "Pass a C-contiguous array, as numpy.ascontiguousarray(array) or tensor.contiguous() make it.",
    "read_only": "Pass an array that may be written to, as a copy.",
    "length": "Pass arrays of the lengths the collective needs.",
    "argument": "Correct the argument.",
    "in_flight": "Wait for some of the operations in flight before starting more.",
    # RendezvousError
    "missing_ranks": "Start the missing ranks; see their logs and whether they reach the rendezvous address.",
    "no_listener": "Start rank 0, and check that this host can reach the rendezvous address.",
    "bad_address": "Correct the rendezvous address: tcp://host:port, IPv6 hosts in brackets.",
    "refused": "Start every rank once, all with the same size.",
    "rank_left": "See the log of the named rank.",
    "peer_failed": "See the error of the named rank.",
    "bad_message": "Run the same version on every rank, and let nothing else use the rendezvous address.",
    "version": "Install the same version of tailcut on every host.",
    "byte_order": "Use hosts of one byte order.",
    "config_mismatch": "Set the named field to one value on all ranks.",
    "loopback": "Set TAILCUT_SOCKET_IFNAME to an interface the other hosts can reach.",
    "family": "Set TAILCUT_SOCKET_FAMILY to ipv4 or ipv6 on all ranks.",
    "no_interface": "Correct TAILCUT_SOCKET_IFNAME or TAILCUT_SOCKET_FAMILY.",
    "socket": "Free the address or choose another with TAILCUT_PORT and TAILCUT_SOCKET_IFNAME.",
    "udp_blocked": "Open the UDP ports of all ranks to each other in firewalls, security groups and network "
    "policies (TAILCUT_PORT fixes the ports).",
    # ConfigError
    "config": "Correct the value at its source.",
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the place and progress of a failure; None or () is "not known" or "does not apply"."""

    rank: int | None = None  # where the error was raised
    group: int | None = None  # 32-bit id of the group
    collective: str | None = None
    tag: int | None = None
    sequence: int | None = None  # counts the operations of this tag
    stage: int | None = None
    elapsed_ns: int | None = None
    received_bytes: int | None = None
    expected_bytes: int | None = None
    culprits: tuple[int, ...] = ()  # the ranks that caused it
    waiting: tuple[int, ...] = ()  # the ranks that only waited for the culprits


class TailcutError(Exception):
    """Base of all errors of tailcut."""

    default_reason = "internal"

    def __init__(self, what: str, *, reason: str | None = None, facts: Facts | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.reason = reason or self.default_reason
        self.facts = facts or Facts()

    @property
    def advice(self) -> str:
        """One sentence or two on what to do."""
        return ADVICE.get(self.reason, ADVICE["internal"])

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that caused the error; for PeerLost exactly the dead ones."""
        return self.facts.culprits

    @property
    def waiting(self) -> tuple[int, ...]:
        """The ranks that only waited, as this one did."""
        return self.facts.waiting

    def __str__(self) -> str:
        sentences = [f"{_place(self.facts)}{self.what}"]
        sentences += _progress(self.facts)
        return " ".join(_stopped(sentence) for sentence in [*sentences, self.advice])

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.reason, self.facts)


class PeerLost(TailcutError):
    """Ranks are dead or out of reach: silent for longer than liveness. `ranks` names exactly them."""

    default_reason = "peer_dead"


class Mismatch(TailcutError):
    """The ranks called different operations; the text says what differs and where."""

    default_reason = "mismatch"


class CollectiveTimeout(TailcutError, TimeoutError):
    """An operation, or a wait for one, took longer than allowed although the ranks are alive."""

    default_reason = "timeout"


class GroupClosed(TailcutError):
    """The group was closed here or by a peer."""

    default_reason = "closed"


class Misuse(TailcutError, ValueError):
    """An argument cannot be used. Nothing was sent, no sequence number taken: correct it and call again."""

    default_reason = "argument"


class RendezvousError(TailcutError):
    """The ranks could not form a group."""

    default_reason = "bad_message"


class ConfigError(TailcutError, ValueError):
    """A value of the configuration cannot be used; the text says which source it came from."""

    default_reason = "config"


def _rebuild(kind: type[TailcutError], what: str, reason: str, facts: Facts) -> TailcutError:
    return kind(what, reason=reason, facts=facts)


# ---- texts


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 1 and 3`, `ranks 1, 3 and 4`; long lists are cut, with their length."""
    if not ranks:
        return "no rank"
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    if len(names) > 16:
        return f"{len(names)} ranks ({', '.join(names[:12])}, ...)"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def duration_text(nanoseconds: int) -> str:
    """A duration in the unit that suits it."""
    for unit, length in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if nanoseconds >= length:
            return (
                f"{nanoseconds / length:.3g} {unit}"
                if nanoseconds < 1000 * length
                else f"{nanoseconds // length} {unit}"
            )
    return f"{nanoseconds} ns"


def bytes_text(count: int) -> str:
    """A number of bytes in the decimal unit that suits it."""
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.3g} {unit}" if count < 1000 * length else f"{count // length} {unit}"
    return f"{count} bytes"


def _place(facts: Facts) -> str:
    parts = []
    if facts.collective is not None:
        identity = f" (tag {facts.tag}, sequence {facts.sequence})" if facts.tag is not None else ""
        parts.append(f"{facts.collective}{identity}")
    if facts.rank is not None:
        parts.append(f"on rank {facts.rank}" if parts else f"rank {facts.rank}")
    if facts.group is not None:
        parts.append(f"of group {facts.group:08x}")
    if facts.stage is not None:
        parts.append(f"in stage {facts.stage}")
    if facts.elapsed_ns is not None:
        parts.append(f"after {duration_text(facts.elapsed_ns)}")
    return f"{' '.join(parts)}: " if parts else ""


def _progress(facts: Facts) -> list[str]:
    sentences = []
    if facts.expected_bytes:
        got, expected = bytes_text(facts.received_bytes or 0), bytes_text(facts.expected_bytes)
        sentences.append(f"{got} of {expected} had arrived here")
    if facts.waiting:
        sentences.append(f"Only waiting: {ranks_text(facts.waiting)}")
    return sentences


def _stopped(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."
