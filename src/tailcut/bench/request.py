"""`tailcut bench`: starts its own ranks, gives all libraries their turns, checks values, shows and keeps all.

What it measures is a Request; where the ranks run is loopback, or the hosts of a lab.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from tailcut.bench import baselines, nccl, surroundings
from tailcut.bench.oracle import refusal
from tailcut.bench.report import finish, summaries
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Team, TeamError
from tailcut.lab import Lab
from tailcut.types import DType

FOLDER = Path("tailcut-results")
SCHEDULES = ("auto", "small", "ring", "transpose")
RANKS_MAX = 64  # on one machine; beyond it is the scheduler that is measured
NOTES = (
    "An operation's time begins when a rank leaves its library's own barrier; the slowest rank counts. "
    "`time` is the mean, as in nccl-tests; algbw = size / time, busbw = algbw x 2 (n - 1) / n.",
    "Every result was compared with the right one, element by element; warm-up is not in the figures.",
    "All libraries take a turn in every round, in random order. Inconclusive: the ratio's interval holds 1, "
    "or there were fewer than 5 rounds.",
    "— stands where there are too few operations to tell the quantile from the maximum.",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure, as the flags say it."""

    begin: int  # bytes
    end: int
    factor: float
    iterations: int  # of every library at every size in one round
    warmup: int
    rounds: int
    ranks: int
    dtype: str
    op: str
    schedules: tuple[str, ...]
    against: tuple[str, ...]  # peers beside tailcut
    seed: int = 1
    timeout_s: float = 120.0  # for one turn
    lab: str = ""  # the scenario; empty: loopback

    def check(self) -> None:
        """Raises ValueError with what is wrong."""
        if not 1 <= self.ranks <= RANKS_MAX:
            raise ValueError(f"ranks are 1 to {RANKS_MAX}, not {self.ranks}")
        if self.iterations < 1 or self.rounds < 1 or self.warmup < 0:
            raise ValueError("there must be at least one operation and one round, and no negative warm-up")
        if unknown := [name for name in self.schedules if name not in SCHEDULES]:
            raise ValueError(f"no such schedule: {', '.join(unknown)}; there are {', '.join(SCHEDULES)}")
        if not self.schedules:
            raise ValueError(f"no schedule; there are {', '.join(SCHEDULES)}")
        if problem := refusal(self.dtype, self.op, self.ranks):
            raise ValueError(problem)
        needed = ["scipy", *(["ml_dtypes"] if self.dtype == "bfloat16" else [])]
        if absent := [name for name in needed if importlib.util.find_spec(name) is None]:
            remedy = f"pip install {' '.join(absent)}"
            raise ValueError(f"not installed: {', '.join(absent)}, which this is measured with: {remedy}")
        self.cases()

    def cases(self) -> list[Case]:
        itemsize = DType.parse(self.dtype).itemsize
        kind = "" if (self.dtype, self.op) == ("float32", "sum") else f" {self.dtype} {self.op}"
        return [
            Case(
                f"{self.ranks} ranks {nccl.size_text(nbytes)}{kind}",
                self.ranks,
                nbytes // itemsize,
                self.iterations,
                self.warmup,
                timeout_s=self.timeout_s,
                dtype=self.dtype,
                op=self.op,
            )
            for nbytes in nccl.sizes(self.begin, self.end, self.factor, itemsize)
        ]


def default_output(what: str) -> Path:
    """A new name for every run, so that none takes another's place."""
    return FOLDER / f"{what}-{datetime.datetime.now():%Y%m%d-%H%M%S}.jsonl"


def available(request: Request, console: Console) -> list[str]:
    """The peers that can take part; says of each other one why not and what to do."""
    names = list(request.against)
    for name, remedy in baselines.missing(names).items():
        what = (
            "gloo comes with PyTorch, which is not installed"
            if name == "gloo"
            else f"{name} is not installed"
        )
        console.print(f"[yellow]{what}: measuring without it.[/yellow] To have it: {remedy}", highlight=False)
        names.remove(name)
    for name in list(names):
        peer = baselines.PEERS[name]()
        if request.lab and peer.launcher and not peer.hydra:
            console.print(f"[yellow]{name} has a launcher that knows nothing of a lab: without it[/yellow]")
            names.remove(name)
            continue
        if peer.dtypes and request.dtype not in peer.dtypes:
            console.print(f"[yellow]{name} has no {request.dtype}: measuring without it[/yellow]")
            names.remove(name)
    return names


def measure(request: Request, output: Path, console: Console, lab: Lab | None = None) -> bool:
    """Runs everything and writes `output` and the table beside it; whether no library failed."""
    request.check()
    names = [*available(request, console), "tailcut"]
    cases = request.cases()
    with Results(output, "bench", asdict(request)) as results, contextlib.ExitStack() as stack:
        if lab is not None:
            results.add("scenario", seed=lab.seed, **asdict(lab.scenario))
        contenders = _start(names, request, results, console, stack, lab)
        if lab is not None:
            stack.enter_context(lab.faults())
        fine = sweep(
            contenders,
            cases,
            rounds=request.rounds,
            results=results,
            console=console,
            seed=request.seed,
            lab=lab,
        )
        reference = contenders[0].team.peer.name  # the first peer of --against; tailcut when it is alone
        found = summaries(results, reference)
        shown = [{**case, "nbytes": of.nbytes} for case, of in zip(results.of("case"), cases, strict=True)]
        seen = () if lab is None else surroundings.judge(results, lab.scenario, reference)
        doubtful = surroundings.doubtful(results.of("surroundings"), reference)
        sheets = [nccl.table(found, results.of("failure"), shown)]
        if len(contenders) > 1:
            sheets.append(nccl.ratios(found, reference, doubtful))
        sheets += seen
        where = f"in the lab's {lab.scenario.name}" if lab is not None else "on this machine"
        finish(results, f"tailcut bench: {request.ranks} ranks {where}", sheets, NOTES, console)
    return fine and len({contender.team.peer.name for contender in contenders}) == len(names)


def _start(
    names: list[str],
    request: Request,
    results: Results,
    console: Console,
    stack: contextlib.ExitStack,
    lab: Lab | None,
) -> list[Contender]:
    """The ranks of every library. In a lab one may fail to start, as without UDP: that is a result."""
    contenders: list[Contender] = []
    for name in names:
        hosts = None if lab is None else lab.hosts
        try:
            with console.status(f"starting {request.ranks} ranks of {name}"):
                team = stack.enter_context(Team(baselines.PEERS[name](), request.ranks, hosts))
        except TeamError as error:
            if lab is None or (name == names[-1] and not contenders):
                raise
            results.add("absent", contender=name, error=str(error))
            console.print(f"[red]{name} did not start:[/red] {error}", highlight=False)
            continue
        contenders += _contenders(team, request.schedules)
    return contenders


def _contenders(team: Team, schedules: tuple[str, ...]) -> list[Contender]:
    if team.peer.name != "tailcut":
        return [Contender(team.peer.name, team)]
    return [Contender("tailcut" if name == "auto" else f"tailcut-{name}", team, name) for name in schedules]
