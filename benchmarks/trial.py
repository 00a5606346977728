"""What soak.py, faults.py and hostile.py share: ranks as processes, a checked stream, verdicts.

The processes come from tests/ranks.py: they can be killed, stopped and asked where they hang.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tailcut.bench.report import Sheet
from tailcut.bench.results import Results

if TYPE_CHECKING:
    from ranks import Place, Report
    from tailcut import Group

ROOT = Path(__file__).resolve().parent.parent
for _folder in ("tests", "tests/group"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))
ranks: Any = importlib.import_module("ranks")

STREAMING = "the stream runs"  # what every rank writes once its first operation is over
LONGEST_ELEMENTS = 500_000  # 2 MB of float32
FAMILIES = ("small", "ring", "transpose")
OPERATION_TIMEOUT_S = 120.0  # beyond every deadline here: a hang shall be seen as one


class Verdicts:
    """PASS and FAIL lines, on the terminal, as records and as a table."""

    def __init__(self, results: Results, console: Console) -> None:
        self._results = results
        self._console = console
        self._rows: list[tuple[str, ...]] = []

    def check(self, what: str, fine: bool, found: str) -> None:
        word = "PASS" if fine else "FAIL"
        self._results.add("verdict", what=what, verdict=word, found=found)
        self._console.print(f"{word}  {what}: {found}", style=None if fine else "red", highlight=False)
        self._rows.append((what, word, found))

    @property
    def fine(self) -> bool:
        return all(word == "PASS" for _, word, _ in self._rows)

    def sheet(self) -> Sheet:
        return Sheet("Verdicts", ("what", "verdict", "found"), self._rows)


def stream(group: Group, seed: str, stop: Path) -> dict[str, int]:
    """All_reduces of mixed lengths, values checked, until a rank sees the file `stop`; all ranks end at once.

    Returns the counts; an operation's error goes to the caller.
    """
    shared = random.Random(seed)  # what all ranks must agree on
    own = random.Random(f"{seed} {group.rank}")
    done = wrong = 0
    total = group.size * (group.size + 1) // 2  # of 1, 2, ..., size
    while True:
        count = int(LONGEST_ELEMENTS ** shared.random())
        array = np.full(count, group.rank + 1, np.float32)
        schedule = shared.choice(FAMILIES)
        group.all_reduce(array, timeout=OPERATION_TIMEOUT_S, schedule=schedule)
        wrong += not bool((array == total).all())
        flag = np.array([stop.exists()], np.uint8)
        group.all_reduce(flag, "max", tag=1, timeout=OPERATION_TIMEOUT_S)
        done += 1
        if done == 1:
            print(STREAMING, flush=True)
        if flag[0]:
            return {"operations": 2 * done, "wrong": wrong}
        if own.random() < 0.2:
            time.sleep(own.random() * 0.005)  # as a rank that computes


def told(report: Report) -> str:
    """One line on how a rank ended."""
    if report.error is None:
        return str(report.value)
    return f"{type(report.error).__name__}: {report.error}"


def run_stream(place: Place, seed: str, stop: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A rank's process: the stream, and when and how it ended."""
    import tailcut

    group = place.connect(algorithm="transpose", linger_s=1.0, **settings)
    try:
        ended: dict[str, Any] = stream(group, seed, Path(stop))
    except tailcut.TailcutError as error:
        ended = {"error": type(error).__name__, "ranks": list(error.ranks), "text": str(error)}
    ended["ended_ns"] = time.monotonic_ns()
    ended["counters"] = group.counters()
    group.close()
    return ended
