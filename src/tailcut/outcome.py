"""What an operation reports when it is done. It never claims more than arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """The report of one completed operation, as this rank saw it."""

    collective: str  # all_reduce, reduce_scatter, all_gather, barrier
    tag: int
    sequence: int  # counts the operations of this tag
    family: str  # the schedule family that ran
    why: str  # why this family was taken
    count: int  # elements of the whole vector
    elapsed_ns: int  # from this rank's start of the operation to its end
    received_bytes: int  # payload that arrived for it and was new
    expected_bytes: int  # payload its Plan lets this rank receive
    resent_packets: int  # packets this rank sent again because a receiver missed them
    lags_ns: tuple[int | None, ...]  # by rank: how long after the first one it entered; None: not seen

    @classmethod
    def of(cls, **fields: Any) -> Outcome:
        """The same as the constructor, which sets frozen fields one by one: 3 us of every small operation."""
        outcome = object.__new__(cls)
        object.__setattr__(outcome, "__dict__", fields)
        return outcome

    @property
    def complete(self) -> bool:
        """Whether all that the Plan expects here has arrived. In exact mode anything less is an error."""
        return self.received_bytes >= self.expected_bytes

    @property
    def straggler(self) -> int | None:
        """The rank with the largest lag: late to start, whatever the network did. None when none was late."""
        lags = [lag or 0 for lag in self.lags_ns]
        return max(range(len(lags)), key=lags.__getitem__) if any(lags) else None
