"""When traffic in bursts is on: the same for everyone who knows the seed."""

from __future__ import annotations

import bisect
import random


class Bursts:
    """Bursts and pauses of exponential length, from time 0 on; without a mean length always on."""

    def __init__(self, on_ms: float, off_ms: float, seed: int) -> None:
        self._means_ns = (off_ms * 1e6, on_ms * 1e6)
        self._rng = random.Random(f"bursts {seed}")
        self._edges_ns = [0]  # the first pause begins; then bursts and pauses begin in turns
        self._on_ns = [0]  # on before each edge

    def is_on(self, at_ns: int) -> bool:
        return self.next_edge_ns(at_ns)[1] if self._means_ns[1] else True

    def next_edge_ns(self, at_ns: int) -> tuple[int, bool]:
        """When what is now ends, and whether it is a burst."""
        self._reach(at_ns)
        index = bisect.bisect_right(self._edges_ns, at_ns)
        return self._edges_ns[index], index % 2 == 0

    def on_until_ns(self, at_ns: int) -> int:
        """For how long it has been on between time 0 and now."""
        if not self._means_ns[1]:
            return at_ns
        self._reach(at_ns)
        index = bisect.bisect_right(self._edges_ns, at_ns) - 1
        return self._on_ns[index] + (at_ns - self._edges_ns[index] if index % 2 == 1 else 0)

    def _reach(self, at_ns: int) -> None:
        while self._edges_ns[-1] <= at_ns:
            burst = len(self._edges_ns) % 2 == 0
            length = 1 + round(self._rng.expovariate(1 / self._means_ns[burst]))
            self._on_ns.append(self._on_ns[-1] + (length if burst else 0))
            self._edges_ns.append(self._edges_ns[-1] + length)
