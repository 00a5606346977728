"""What an operation reports when it is done. It never claims more than arrived."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of one completed operation, as this rank saw it."""

    collective: str  # all_reduce, reduce_scatter, all_gather, barrier
    tag: int
    sequence: int  # counts the operations of this tag
    family: str  # the schedule family that ran
    why: str  # why this family was taken
    count: int  # elements of the whole vector
    elapsed_ns: int  # from this rank's start of the operation to its end
    sent_bytes: int  # payload put on the network for the first time
    received_bytes: int  # payload that arrived and was new
    expected_bytes: int  # payload the Plan lets this rank receive
    resent_packets: int  # packets sent again because a receiver missed them
    lags_ns: tuple[
        int, ...
    ]  # per rank, how much later than the first it entered, as far as this rank could see

    @property
    def complete(self) -> bool:
        """Whether all that the Plan expects here has arrived. In exact mode anything less is an error."""
        return self.received_bytes >= self.expected_bytes

    @property
    def straggler(self) -> int | None:
        """The rank that entered last, or None when no lag was seen."""
        if not any(self.lags_ns):
            return None
        return max(range(len(self.lags_ns)), key=self.lags_ns.__getitem__)
