"""What the files of results say, as values that a page can show: nothing is drawn or written here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailcut.bench.figures import Ratio, quantile, resolvable
from tailcut.bench.report import against, as_ratio
from tailcut.bench.results import Record, read
from tailcut.bench.surroundings import doubtful
from tailcut.bench.sweep import rounds_of
from tailcut.types import DType

QUANTILES = (0.5, 0.9, 0.99, 0.999)
TAILCUT = "tailcut"


@dataclass(frozen=True, slots=True)
class Cell:
    """One library in one case."""

    case: str
    contender: str
    times_ns: npt.NDArray[np.int64]  # sorted
    transfers_ns: npt.NDArray[np.int64]  # sorted; from the last rank's start on; empty when nobody noted them
    quantiles_ns: dict[float, float | None]  # None: too few samples to tell it from the maximum
    median_ratio: Ratio | None  # to the reference; None for itself
    tail_ratio: Ratio | None  # the same of p99
    wire_share: float  # bytes on the wire for one operation, in vectors; all ranks together
    wire_limit: float  # the fewest an AllReduce can do with
    queue_drops: int
    lost: int
    resent: int | None  # None: the library does not say
    idle_share: float
    doubtful: bool  # the lab saw that its ratios decide nothing
    lags_ns: list[list[int]]  # per rank, of all operations; empty when nobody noted them

    @property
    def max_ns(self) -> int:
        return int(self.times_ns[-1])

    def word(self, ratio: Ratio) -> str:
        return "invalid" if self.doubtful else ratio.word()


@dataclass(frozen=True, slots=True)
class Digest:
    """One file."""

    path: Path
    run: Record
    reference: str  # whom the ratios compare with
    cells: list[Cell]
    failures: list[Record]
    bars: list[Record]
    trainings: list[Record] = field(default_factory=list)
    scenario: Record = field(default_factory=dict)  # of the lab; empty on loopback
    surroundings: list[Record] = field(default_factory=list)  # what the lab saw, per case and library
    limits_ns: dict[str, float] = field(default_factory=dict)  # per case, what the bandwidth allows
    versions: dict[str, Any] = field(default_factory=dict)

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(cell.case for cell in self.cells))

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(cell.contender for cell in self.cells))

    def of(self, case: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.case == case]


def digest(path: Path) -> Digest:
    """Reads one file of results; ValueError when it is none."""
    try:
        records = read(path)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is no file of results: {error}") from error
    if not records or records[0].get("kind") != "run":
        raise ValueError(f"{path} is no file of results: it does not begin with a run")

    def of(kind: str) -> list[Record]:
        return [record for record in records if record["kind"] == kind]

    contenders = list(dict.fromkeys(record["name"] for record in of("contender")))
    reference = _reference(of("summary"), contenders)
    doubts = doubtful(of("surroundings"), reference)
    cells = [
        cell
        for case in of("case")
        for name in contenders
        if (cell := _cell(case, name, reference, of("samples"), of("summary"), doubts)) is not None
    ]
    versions = {**records[0].get("versions", {})}
    for contender in of("contender"):
        versions |= contender.get("versions", {})
    return Digest(
        path=path,
        run=records[0],
        reference=reference,
        cells=cells,
        failures=[{"case": "at the start", **record} for record in of("absent") + of("failure")],
        bars=of("bar"),
        trainings=of("training"),
        scenario=next(iter(of("scenario")), {}),
        surroundings=of("surroundings"),
        limits_ns={record["case"]: record["limit_ns"] for record in of("headroom")},
        versions=versions,
    )


def newest(folder: Path) -> Path | None:
    """The file of results that was finished last."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return files[-1] if files else None


def _reference(summaries: Sequence[Record], contenders: Sequence[str]) -> str:
    if summaries and "reference" in summaries[0]:
        return str(summaries[0]["reference"])
    return "gloo" if "gloo" in contenders or not contenders else contenders[0]


def _cell(
    case: Record,
    name: str,
    reference: str,
    samples: list[Record],
    summaries: Sequence[Record],
    doubts: Collection[tuple[str, str]],
) -> Cell | None:
    rounds = rounds_of(samples, case["name"], name)
    if not rounds:
        return None
    times = _sorted(rounds.values())
    turns = [turn for turn in samples if turn["case"] == case["name"] and turn["contender"] == name]
    nbytes = DType.parse(case.get("dtype", "float32")).itemsize * case["elements"]
    operations = sum(turn["operations"] for turn in turns)
    resent = [turn["counters"]["resent_packets"] for turn in turns if "resent_packets" in turn["counters"]]
    median = tail = None
    if name != reference:
        base = rounds_of(samples, case["name"], reference)
        known = [one for one in summaries if (one["case"], one["contender"]) == (case["name"], name)]
        median = as_ratio(known[0]) if known else against(rounds, base, 0.5)
        tail = as_ratio(known[0].get("p99_ratio", {})) if known else None
        if tail is None:
            tail = against(rounds, base, 0.99)
    return Cell(
        case=case["name"],
        contender=name,
        times_ns=times,
        transfers_ns=_sorted(turn.get("transfers_ns", []) for turn in turns),
        quantiles_ns={q: quantile(times, q) if resolvable(times.size, q) else None for q in QUANTILES},
        median_ratio=median,
        tail_ratio=tail,
        wire_share=sum(turn["wire"]["sent_bytes"] for turn in turns) / operations / nbytes,
        wire_limit=2.0 * (case["ranks"] - 1),
        queue_drops=sum(turn["wire"]["queue_drops"] for turn in turns),
        lost=sum(turn["wire"]["lost"] for turn in turns),
        resent=sum(resent) if resent else None,
        idle_share=sum(turn["idle_share"] for turn in turns) / len(turns),
        doubtful=(case["name"], name) in doubts,
        lags_ns=_lags(turn.get("lags_ns") or [] for turn in turns),
    )


def _sorted(parts: Iterable[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.sort(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))


def _lags(turns: Iterable[list[list[int]]]) -> list[list[int]]:
    """Per rank, the lags of all turns one after the other."""
    noted = [turn for turn in turns if turn]
    return [[lag for part in parts for lag in part] for parts in zip(*noted, strict=True)] if noted else []
