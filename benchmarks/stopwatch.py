"""Do the harness's figures agree with a stopwatch that knows nothing of the harness? The bar: within 3 %.

Every rank's library is wrapped: a second clock (CLOCK_MONOTONIC_RAW, which nothing adjusts) stops when the
barrier lets this rank go and when the operation is back, and writes both down in a file of the rank's own.
From these files this script works out the slowest rank of each operation, the mean and the quantiles, with
arithmetic of its own; then it looks at what the harness recorded of the very same operations.

python benchmarks/stopwatch.py          about a minute
python benchmarks/stopwatch.py --quick  a few seconds: a try, no evidence
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tailcut.bench import baselines
from tailcut.bench.report import Sheet, finish, summaries, terminal
from tailcut.bench.results import Record, Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Team

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results/stopwatch.jsonl"
BAR = 0.03
KB, MB = 1 << 10, 1 << 20
CASES = [
    Case(f"{ranks} ranks {text}", ranks, nbytes // 4, iterations, warmup=3)
    for ranks in (2, 4)
    for text, nbytes, iterations in (("64 KB", 64 * KB, 100), ("1 MB", MB, 40), ("25 MB", 25 * MB, 8))
]
NOTES = [
    "Each line: one figure as the harness has it and as the stopwatch has it, over the same operations.",
    "The stopwatch: another clock, inside the wrapped library's calls, its own files, its own arithmetic.",
]


def watched(stamps: list[list[list[int]]], case: Case) -> list[int]:
    """The slowest rank's time of every operation that counts, from the files of all ranks."""
    turn = case.warmup + case.iterations
    own = [[stop - start for size, start, stop in rank if size == case.elements] for rank in stamps]
    return [max(times) for i, times in enumerate(zip(*own, strict=True)) if i % turn >= case.warmup]


def figures(times: list[int]) -> dict[str, float | None]:
    ordered = sorted(times)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    p99 = ordered[math.ceil(0.99 * (n - 1))] if n >= 100 else None
    return {"mean_ns": sum(ordered) / n, "p50_ns": middle, "p99_ns": p99, "max_ns": ordered[-1]}


def compare(results: Results, record: Record, times: list[int]) -> list[tuple[str, ...]]:
    rows = []
    for name, value in figures(times).items():
        theirs = record[name]
        if value is None or theirs is None:
            continue
        off = theirs / value - 1
        verdict = "met" if abs(off) <= BAR else "missed"
        where = {"case": record["case"], "contender": record["contender"], "figure": name}
        results.add("stopwatch", **where, harness=theirs, stopwatch=value, off=off, verdict=verdict)
        ms = (f"{theirs / 1e6:.4f}", f"{value / 1e6:.4f}")
        row = (record["case"], record["contender"], name.removesuffix("_ns"), str(len(times)), *ms)
        rows.append((*row, f"{off:+.2%}", verdict))
    return rows


def wrapped(name: str, folder: Path) -> Any:
    """The peer, with the stopwatch around its communicator."""
    peer = baselines.PEERS[name]()
    env = {**peer.env, "STOPWATCH_INNER": str(peer.communicator), "STOPWATCH_FOLDER": str(folder)}
    return replace(peer, communicator=HERE / "watched.py", env=env)


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    rounds: Annotated[int, typer.Option(help="turns of every contender in every case")] = 6,
    peers: Annotated[str, typer.Option(help="who is watched")] = "tailcut,gloo",
    quick: Annotated[bool, typer.Option(help="2 short rounds into *-quick.jsonl: no evidence")] = False,
) -> None:
    """Compares the harness's figures with an independent stopwatch's."""
    console = terminal()
    names = baselines.chosen(peers)
    path = output.with_stem(output.stem + "-quick") if quick else output
    cases = [case.shortened(5) for case in CASES] if quick else CASES
    rounds = min(rounds, 2) if quick else rounds
    settings = {"rounds": rounds, "peers": names, "quick": quick, "bar": BAR}
    rows: list[tuple[str, ...]] = []
    with Results(path, "stopwatch", settings) as results, tempfile.TemporaryDirectory() as scratch:
        folders: dict[tuple[str, int], Path] = {}
        with contextlib.ExitStack() as stack:
            contenders = []
            for size in sorted({case.ranks for case in cases}):
                for name in names:
                    folders[name, size] = folder = Path(scratch) / f"{name}-{size}"
                    folder.mkdir()
                    team = stack.enter_context(Team(wrapped(name, folder), size))
                    contenders.append(Contender(name, team))
            fine = sweep(contenders, cases, rounds=rounds, results=results, console=console)
        by_name = {case.name: case for case in cases}
        for record in summaries(results, names[0]):
            files = sorted(folders[record["contender"], record["ranks"]].iterdir())
            stamps = [json.loads(file.read_text()) for file in files]
            rows += compare(results, record, watched(stamps, by_name[record["case"]]))
        heads = ("case", "library", "figure", "operations", "harness ms", "stopwatch ms", "off", "within 3 %")
        sheet = Sheet("Harness and stopwatch", heads, rows)
        finish(results, "The harness beside an independent stopwatch", [sheet], NOTES, console)
    raise typer.Exit(0 if fine and rows and all(row[-1] == "met" for row in rows) else 1)


if __name__ == "__main__":
    typer.run(main)
