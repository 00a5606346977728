"""The table of all scenarios: every library in every network of the lab, one file of results for each.

python benchmarks/scenarios.py                          hours on a quiet machine; needs the lab
python benchmarks/scenarios.py --only clean,lossy-1     some of them
python benchmarks/scenarios.py --table                  the table again, from the files that are there

Scenarios whose files are there are left out, so an interrupted run goes on where it was; delete a file to
measure it again. `tailcut report benchmarks/results/scenarios/*.jsonl` makes a page of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tailcut.bench import baselines
from tailcut.bench.nccl import parse_size
from tailcut.bench.report import terminal
from tailcut.bench.request import Request, measure
from tailcut.bench.results import Record, read
from tailcut.bench.team import TeamError
from tailcut.lab import LabError, open_scenario, scenario

FOLDER = Path(__file__).resolve().parent / "results/scenarios"
PEERS = "gloo,mpich,intel-mpi,tar-tcp"
HEADS = ("scenario", "library", "operations", "p50 ms", "p99 ms", "max ms", "p50 / gloo", "p99 / gloo")
MORE = ("background Mbit/s", "of beside gloo", "busy", "invalid turns", "remarks")


def run(name: str, path: Path, size: int, rounds: int, iterations: int, peers: str, console: Console) -> None:
    scene = scenario.load(name)
    request = Request(
        begin=size,
        end=size,
        factor=2,
        iterations=iterations,
        warmup=2,
        rounds=rounds,
        ranks=scene.hosts,
        dtype="float32",
        op="sum",
        schedules=("ring", "transpose"),
        against=tuple(baselines.named(peers)),
        lab=name,
    )
    with open_scenario(scene, seed=request.seed) as lab:
        measure(request, path, console, lab)


def rows(path: Path) -> list[tuple[str, ...]]:
    """One line for each library: its times, and what the lab saw meanwhile."""
    records = read(path)
    seen = {record["contender"]: record for record in records if record["kind"] == "surroundings"}
    found = [_row(path.stem, record, seen[record["contender"]]) for record in _of(records, "summary")]
    for record in [*_of(records, "failure"), *_of(records, "absent")]:
        empty = ("",) * (len(HEADS) + len(MORE) - 3)
        found.append((path.stem, record["contender"], *empty, str(record["error"]).split("\n")[0][:80]))
    return found


def _of(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def _row(name: str, record: Record, seen: Record) -> tuple[str, ...]:
    def ms(key: str) -> str:
        return "—" if record[key] is None else f"{record[key] / 1e6:.1f}"

    mbit, share = seen["background_mbit"], seen["background_share"]
    return (
        name,
        record["contender"],
        str(record["operations"]),
        *(ms(key) for key in ("p50_ns", "p99_ns", "max_ns")),
        _interval(record),
        _interval(record.get("p99_ratio") or {}),
        "—" if mbit is None else f"{mbit:.1f}",
        "—" if share is None else f"{share:.2f}",
        f"{seen['busy_share']:.0%}",
        f"{seen['invalid_turns']} of {seen['turns']}",
        "void: " + seen["void"] if seen["void"] else "",
    )


def _interval(record: Record) -> str:
    if record.get("ratio") is None:
        return "—"
    bounds = "" if record["low"] is None else f" [{record['low']:.2f}, {record['high']:.2f}]"
    return f"{record['ratio']:.2f}{bounds}"


def table(folder: Path) -> Path:
    lines = [
        "| " + " | ".join([*HEADS, *MORE]) + " |",
        "| " + " | ".join(["---"] * len([*HEADS, *MORE])) + " |",
    ]
    for path in sorted(folder.glob("*.jsonl")):
        lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows(path)]
    target = folder / "README.md"
    title = "# All scenarios of the lab\n\nMade by `python benchmarks/scenarios.py`.\n\n"
    target.write_text(title + "\n".join(lines) + "\n", encoding="utf-8")
    return target


def main(
    only: Annotated[str, typer.Option(help="scenarios, with commas; empty: all")] = "",
    size: Annotated[str, typer.Option(help="of an operation")] = "4M",
    rounds: Annotated[int, typer.Option(help="turns of every library")] = 12,
    iterations: Annotated[int, typer.Option(help="operations in a turn")] = 10,
    peers: Annotated[str, typer.Option(help="beside tailcut")] = PEERS,
    folder: Annotated[Path, typer.Option(help="for the files")] = FOLDER,
    just_table: Annotated[bool, typer.Option("--table", help="measure nothing")] = False,
) -> None:
    """Measures every scenario that has no file yet, then writes the table."""
    console = terminal()
    names = [name.strip() for name in only.split(",") if name.strip()] or scenario.names()
    folder.mkdir(parents=True, exist_ok=True)
    for name in [] if just_table else names:
        path = folder / f"{name}.jsonl"
        if path.exists():
            console.print(f"{name}: there already")
            continue
        try:
            run(name, path, parse_size(size), rounds, iterations, peers, console)
        except (TeamError, LabError) as error:
            console.print(f"[red]{name}: {error}[/red]", highlight=False)
    console.print(f"{table(folder)} written", highlight=False)


if __name__ == "__main__":
    typer.run(main)
