"""How busy the machine's cores were: the lab is like a network only while there are cores to spare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE_MAX = 0.70  # of all cores together; above it the processor shapes the figures, not the network


@dataclass(frozen=True, slots=True)
class Load:
    """Ticks of all cores together; two of them make a share."""

    busy: int  # with what the hypervisor took away
    idle: int

    def busy_share_since(self, before: Load) -> float:
        busy, idle = self.busy - before.busy, self.idle - before.idle
        return busy / max(1, busy + idle)


def now() -> Load:
    """Since boot."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    numbers = [int(word) for word in words]
    idle = numbers[3] + numbers[4]
    return Load(sum(numbers) - idle, idle)
