"""Faults over time: which, when and where is a pure function of the scenario and the seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailcut.lab.scenario import Fault, Stragglers
from tailcut.lab.stragglers import lags_ns


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """A fault begins or ends; sorted by time."""

    at_ns: int  # after the start
    kind: str  # as in Fault
    host: int
    to: int | None = None  # of a cut
    begins: bool = True

    def __str__(self) -> str:
        words = {
            ("kill", True): f"host {self.host}: killed",
            ("kill", False): f"host {self.host}: started again",
            ("pause", True): f"host {self.host}: paused",
            ("pause", False): f"host {self.host}: continues",
            ("link", True): f"host {self.host}: link down",
            ("link", False): f"host {self.host}: link up",
        }
        target = "anyone" if self.to is None else f"host {self.to}"
        cut = f"host {self.host}: nothing reaches {target}" + ("" if self.begins else " no more")
        return words.get((self.kind, self.begins), cut if self.begins else f"host {self.host}: heard again")


def timeline(faults: Sequence[Fault], hosts: int, seed: int) -> Iterator[Event]:
    """All events in the order of time; without end when a fault comes again and again."""
    parts = [_of_one(number, fault, hosts, seed) for number, fault in enumerate(faults)]
    return heapq.merge(*parts, key=lambda event: event.at_ns)


def pauses(stragglers: Stragglers, hosts: int, seed: int) -> Iterator[Event]:
    """The stragglers as pauses of processes, for a command whose operations nobody knows."""
    every_ns = round(stragglers.every_ms * 1e6)
    free_ns = dict.fromkeys(range(hosts), 0)  # a pause that lasts to the next one swallows it
    waiting: list[Event] = []
    for operation in itertools.count():
        at_ns = (operation + 1) * every_ns
        while waiting and waiting[0].at_ns <= at_ns:
            yield heapq.heappop(waiting)
        for host, lag_ns in sorted(lags_ns(stragglers, hosts, seed, operation).items()):
            if lag_ns and free_ns[host] <= at_ns:
                free_ns[host] = at_ns + lag_ns
                yield Event(at_ns, "pause", host)
                heapq.heappush(waiting, Event(at_ns + lag_ns, "pause", host, begins=False))


def _of_one(number: int, fault: Fault, hosts: int, seed: int) -> Iterator[Event]:
    rng = random.Random(f"fault {seed} {number}")
    last_end_ns = 0
    for repeat in itertools.count():
        at_s = fault.at_s + repeat * (fault.every_s or 0.0) + rng.uniform(-1, 1) * fault.spread_s
        at_ns = max(last_end_ns, round(at_s * 1e9))
        others = [host for host in range(hosts) if host != fault.to]
        host = rng.choice(others) if fault.host is None else fault.host
        yield Event(at_ns, fault.kind, host, fault.to)
        if fault.for_s is not None:
            last_end_ns = at_ns + round(fault.for_s * 1e9)
            yield Event(last_end_ns, fault.kind, host, fault.to, begins=False)
        if fault.every_s is None:
            return
