"""The subcommands `bench` and `report` and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailcut.bench import digest, page
from tailcut.bench.baselines import named
from tailcut.bench.nccl import parse_size
from tailcut.bench.report import terminal
from tailcut.bench.request import FOLDER, Request, default_output, measure
from tailcut.bench.team import TeamError
from tailcut.lab import LabError, open_scenario, privileges, scenario

RANKS = 4  # two cores measure no more

BENCH_HELP = """AllReduce on ranks of this machine: tailcut and other libraries in turns, in one run.

Flags and columns are those of nccl-tests; behind them stand the tail (p50, p99, p99.9, max), and the ratio to
the first peer with its 95 % interval. Every result is checked. Every sample is kept in a file.

\b
Examples:
  tailcut bench                                     64 KiB to 16 MiB on 4 ranks beside Gloo
  tailcut bench -b 1M -e 64M -f 2 -n 50 -g 2        other sizes, 50 operations a round, 2 ranks
  tailcut bench --against gloo,mpich,openmpi        MPIs too (once: python -m tailcut.bench.baselines)
  tailcut bench --schedule auto,ring,transpose      our own schedules side by side
  tailcut bench --lab lossy-1 --against gloo,tar-tcp   between hosts of a lab that lose 1 % of the packets
  tailcut bench --against none -d bfloat16 -o avg   alone, another type and reduction
  tailcut report                                    then: the newest results as a page
"""

REPORT_HELP = """One HTML page from files of results: distributions, ratios, bytes, loss, lag.

The page needs nothing beside it: send it, print it. To be made it needs matplotlib and jinja2:
pip install 'tailcut[bench]'.

\b
Examples:
  tailcut report                                       the newest file in tailcut-results/
  tailcut report a.jsonl b.jsonl --output both.html    several runs in one page
  tailcut report a.jsonl --png figures                 each figure also as a PNG in figures/
"""


def bench(
    begin: Annotated[str, typer.Option("-b", "--begin", help="smallest size: bytes, or 64K, 1M")] = "64K",
    end: Annotated[str, typer.Option("-e", "--end", help="largest size")] = "16M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="from one size to the next")] = 4,
    iterations: Annotated[
        int, typer.Option("-n", "--iters", help="operations of every library at every size in one round")
    ] = 20,
    warmup: Annotated[
        int, typer.Option("-w", "--warmup", help="operations before them that do not count")
    ] = 5,
    rounds: Annotated[int, typer.Option(help="turns of every library; below 5 nothing is conclusive")] = 10,
    ranks: Annotated[
        int | None,
        typer.Option("-g", "--ranks", help="processes on this machine [default: 4, or the scenario's hosts]"),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option("-d", "--dtype", help="float32, float64, float16, bfloat16, int32, int64 or uint8"),
    ] = "float32",
    op: Annotated[str, typer.Option("-o", "--op", help="sum, avg, min, max or prod")] = "sum",
    against: Annotated[
        str, typer.Option(help="peers: gloo, tar-tcp, intel-mpi, openmpi, mpich, with commas; or none")
    ] = "gloo",
    schedule: Annotated[str, typer.Option(help="auto, small, ring, transpose, with commas")] = "auto",
    lab: Annotated[
        str,
        typer.Option(metavar="SCENARIO", help="one rank a host in a network of the lab (tailcut lab list)"),
    ] = "",
    seed: Annotated[int, typer.Option(help="of the order of turns, and of what is random in the lab")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="JSON lines; the table goes beside it [default: a new file]")
    ] = None,
) -> None:
    console = terminal()
    names = () if against.strip().lower() in ("none", "") else tuple(named(against))
    try:
        scene = scenario.load(lab, hosts=ranks) if lab else None
        request = Request(
            begin=parse_size(begin),
            end=parse_size(end),
            factor=factor,
            iterations=iterations,
            warmup=warmup,
            rounds=rounds,
            ranks=ranks if ranks is not None else scene.hosts if scene is not None else RANKS,
            dtype=dtype,
            op=op,
            schedules=tuple(name.strip() for name in schedule.split(",") if name.strip()),
            against=tuple(name for name in names if name != "tailcut"),
            seed=seed,
            lab=lab,
        )
        request.check()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    where = output or default_output("bench")
    try:
        if scene is None:
            fine = measure(request, where, console)
        else:
            privileges.become_able()
            with open_scenario(scene, seed=seed) as opened:
                fine = measure(request, where, console, opened)
    except (TeamError, LabError) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(1) from error
    console.print(f"a page of it: tailcut report {where}", highlight=False)
    raise typer.Exit(0 if fine else 1)


def report(
    files: Annotated[
        list[Path] | None, typer.Argument(help="JSON lines of runs [default: the newest in tailcut-results]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="the page [default: beside the first file]")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="folder for the figures as PNGs")] = None,
) -> None:
    console = terminal()
    paths = files or [path for path in [digest.newest(FOLDER)] if path is not None]
    if not paths:
        raise typer.BadParameter(f"no file given, and none in {FOLDER}: run tailcut bench first")
    try:
        digests = [digest.digest(path) for path in paths]
        written = page.write(digests, output or paths[0].with_suffix(".html"), png=png)
    except (ValueError, page.Missing) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(1) from error
    for path in written:
        console.print(f"written: {path}", highlight=False)
