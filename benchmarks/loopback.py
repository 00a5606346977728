"""Figure 1: AllReduce over loopback, all peers in turns in one run.

python -m tailcut.bench.baselines       once: installs the MPIs
python benchmarks/loopback.py           about 6 minutes on two cores
python benchmarks/loopback.py --quick   a minute: a try, no evidence
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from tailcut.bench import baselines
from tailcut.bench.report import Bar, finish, judge, summarize, terminal
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Team

RESULTS = Path(__file__).resolve().parent / "results/loopback.jsonl"
KB, MB = 1 << 10, 1 << 20

CASES = [
    Case("4 ranks 64 KB", ranks=4, elements=64 * KB // 4, iterations=100, warmup=10),
    Case("4 ranks 1 MB", ranks=4, elements=MB // 4, iterations=50, warmup=5),
    Case("4 ranks 25 MB", ranks=4, elements=25 * MB // 4, iterations=10, warmup=2),
    Case("2 ranks 64 KB", ranks=2, elements=64 * KB // 4, iterations=100, warmup=10),
]
LARGE = ("4 ranks 1 MB", "4 ranks 25 MB")
# What the issue asks for: (case, peer, quantile, bar or None).
ASKED = [
    ("4 ranks 25 MB", "gloo", 0.5, 0.7),
    ("4 ranks 25 MB", "intel-mpi", 0.5, 1.0),
    ("4 ranks 1 MB", "gloo", 0.5, 0.5),
    ("4 ranks 64 KB", "gloo", 0.5, 0.2),
    ("2 ranks 64 KB", "gloo", 0.5, 1.0),
    *((case.name, "openmpi", 0.5, None) for case in CASES),
    *((case.name, "gloo", 0.99, None) for case in CASES),
    *((case.name, "intel-mpi", 0.99, None) for case in CASES),
]
NOTES = [
    "Time starts when a rank leaves its library's own barrier; the slowest rank counts; all results are "
    "compared with the right ones.",
    "`wire` is what went over loopback for one operation, barrier included, in vectors of S bytes: a ring "
    "or a transpose needs 2 (n - 1) S, shared memory would show 0.",
    "`idle`: of all cores, while measured: near 0 the processor was the limit, not the network.",
]


def contenders_of(team: Team) -> list[Contender]:
    if team.peer.name != "tailcut":
        return [Contender(team.peer.name, team)]
    small = tuple(case.name for case in CASES if case.name not in LARGE)
    return [
        Contender("tailcut", team, "auto"),
        Contender("tailcut-ring", team, "ring"),
        Contender("tailcut-transpose", team, "transpose"),
        Contender("tailcut-small", team, "small", only=small),  # n times the bytes: not for large ones
    ]


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    rounds: Annotated[int, typer.Option(help="turns of every contender in every case")] = 12,
    peers: Annotated[
        str, typer.Option(help="who takes part")
    ] = "gloo,tar-tcp,intel-mpi,openmpi,mpich,tailcut",
    quick: Annotated[bool, typer.Option(help="3 short rounds into *-quick.jsonl: no evidence")] = False,
) -> None:
    """AllReduce over loopback: gloo, MPI over TCP and tailcut in turns."""
    console = terminal()
    names = baselines.chosen(peers)
    path = output.with_stem(output.stem + "-quick") if quick else output
    cases = [case.shortened(5) for case in CASES] if quick else CASES
    rounds = min(rounds, 3) if quick else rounds
    settings = {"rounds": rounds, "peers": names, "quick": quick}
    with Results(path, "loopback", settings) as results, contextlib.ExitStack() as stack:
        contenders = []
        for size in sorted({case.ranks for case in cases}):
            for name in names:
                console.print(f"starting {size} ranks of {name}")
                team = stack.enter_context(Team(baselines.PEERS[name](), size))
                contenders += contenders_of(team)
        fine = sweep(contenders, cases, rounds=rounds, results=results, console=console)
        bars = [
            Bar(f"{case}, tailcut / {peer}, p{q * 100:.0f}", (case, "tailcut", q), (case, peer, q), limit)
            for case, peer, q, limit in ASKED
        ]
        sheets = [summarize(results, "gloo"), judge(results, bars)]
        finish(results, "AllReduce over loopback", sheets, NOTES, console)
    raise typer.Exit(0 if fine else 1)


if __name__ == "__main__":
    typer.run(main)
