"""Measures several contenders in turns: every round gives each of them every case once, in random order.

What else happens on the machine then falls on all alike, and each round is a sample of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tailcut.bench.figures import Rounds
from tailcut.bench.results import Record, Results
from tailcut.bench.team import Team, TeamError
from tailcut.lab import Cell, Lab
from tailcut.types import DType

OPERATIONS_PER_ROUND = 1_000_000  # numbers kept apart for a round, so that each has lags of its own


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure."""

    name: str
    ranks: int
    elements: int
    iterations: int  # in one turn
    warmup: int = 3  # operations at the beginning of each turn that do not count
    loss_percent: float = 0.0  # only in a lab
    timeout_s: float = 120.0  # for a whole turn
    dtype: str = "float32"
    op: str = "sum"

    @property
    def nbytes(self) -> int:
        return DType.parse(self.dtype).itemsize * self.elements

    def shortened(self, times: int) -> Case:
        """The same with fewer operations in a turn."""
        return replace(self, iterations=max(2, self.iterations // times))


@dataclass(frozen=True, slots=True)
class Contender:
    """A team, and in which of its variants it runs."""

    name: str
    team: Team
    variant: str = ""
    only: tuple[str, ...] = field(default=())  # names of cases; empty: all


def sweep(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    *,
    rounds: int,
    results: Results,
    console: Console,
    prepare: Callable[[Case], None] = lambda case: None,
    seed: int = 1,
    lab: Lab | None = None,
) -> bool:
    """Runs all turns and records their samples; prepare is called before each case.

    lab: its stragglers are late, and what it saw meanwhile stands beside each turn's samples.

    A contender that fails is recorded and left out from then on, with all others of its team. Returns
    whether none failed.
    """
    rng = random.Random(seed)
    broken: set[int] = set()
    for contender in contenders:
        results.add(
            "contender", name=contender.name, variant=contender.variant, versions=contender.team.versions
        )
    for case in cases:
        results.add("case", **asdict(case))
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds * sum(1 for _ in _pairs(contenders, cases)))
        for number in range(rounds):
            for case in rng.sample(cases, len(cases)):
                pairs = list(_pairs(contenders, [case]))
                prepare(case)
                for contender, _ in rng.sample(pairs, len(pairs)):
                    progress.update(
                        task, description=f"round {number + 1}/{rounds} {case.name} {contender.name}"
                    )
                    if id(contender.team) not in broken and not _turn(
                        contender, case, number, results, console, lab
                    ):
                        broken.add(id(contender.team))
                    progress.advance(task)
    return not broken


def _pairs(contenders: Sequence[Contender], cases: Sequence[Case]) -> Iterator[tuple[Contender, Case]]:
    for case in cases:
        for contender in contenders:
            if contender.team.size == case.ranks and (not contender.only or case.name in contender.only):
                yield contender, case


def _turn(
    contender: Contender, case: Case, number: int, results: Results, console: Console, lab: Lab | None
) -> bool:
    where: dict[str, Any] = {"case": case.name, "contender": contender.name, "round": number}
    seen: Cell | None = None
    try:
        with lab.cell() if lab is not None else contextlib.nullcontext() as seen:
            turn = contender.team.measure(
                case.elements,
                iterations=case.iterations,
                warmup=case.warmup,
                variant=contender.variant,
                seed=number,
                timeout_s=case.timeout_s,
                dtype=case.dtype,
                op=case.op,
                lags_ns=_lags(lab, case, number),
            )
    except TeamError as error:
        results.add("failure", **where, error=str(error), wrong_elements=error.wrong_elements)
        console.print(f"[red]{case.name}, {contender.name} failed:[/red] {error}", highlight=False)
        return False
    fields = asdict(turn) if seen is None else {**asdict(turn), "lab": asdict(seen.record)}
    results.add("samples", **where, **fields, load_average=os.getloadavg()[0])
    return True


def _lags(lab: Lab | None, case: Case, number: int) -> list[list[int]]:
    """The same for all contenders in this case and round, another list in every round."""
    if lab is None or lab.scenario.stragglers is None:
        return []
    first, count = number * OPERATIONS_PER_ROUND, case.warmup + case.iterations
    return [
        [lab.lag_ns(operation, rank) for rank in range(case.ranks)]
        for operation in range(first, first + count)
    ]


def rounds_of(records: Sequence[Record], case: str, contender: str) -> Rounds:
    """The samples of one contender in one case, by round; empty when it has none."""
    return {
        record["round"]: record["durations_ns"]
        for record in records
        if record["kind"] == "samples" and record["case"] == case and record["contender"] == contender
    }
