"""The command `tailcut lab calibrate`. It measures, so it lives here, and `cli` puts it beside the others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tailcut.bench.calibrate import Effort, calibrate, sheet, verdict, with_background
from tailcut.bench.nccl import parse_size
from tailcut.bench.report import finish, terminal
from tailcut.bench.request import default_output
from tailcut.bench.results import Results
from tailcut.bench.team import TeamError
from tailcut.lab import LabError, privileges, scenario
from tailcut.lab.fields import ScenarioError

HELP = """Finds the background traffic at which Gloo's P99 is so many times its P50 on this machine.

Takes the scenario's bursts and turns their rate, then measures the one it found again with other seeds.
Nothing else may run meanwhile: rounds in which the cores were above 70 % busy make the result inconclusive.

\b
Example:
  tailcut lab calibrate tail-3 3 --write tail-3.toml     then: tailcut bench --lab tail-3.toml
"""
NOTES = (
    "p99 / p50 with its 95 % interval: block bootstrap, a block is one round of consecutive operations.",
    "Holds it: the interval holds the wanted value and is no wider than ±15 %.",
)


def command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help="one with a background in bursts")],
    target: Annotated[float, typer.Argument(help="the wanted P99 / P50, as 1.5 or 3")],
    size: Annotated[str, typer.Option(help="of an operation: bytes, or 512K, 1M")] = "512K",
    steps: Annotated[int, typer.Option(help="of the search")] = 6,
    rounds: Annotated[
        int, typer.Option(help="in a step; the final measurement takes four times as many")
    ] = 20,
    iterations: Annotated[int, typer.Option("-n", "--iters", help="operations in a round")] = 20,
    repetitions: Annotated[int, typer.Option(help="final measurements, each with its own seed")] = 3,
    seed: Annotated[int, typer.Option(help="of the bursts")] = 1,
    near: Annotated[float | None, typer.Option(help="Mbit/s found before: searches within 5 % of it")] = None,
    write: Annotated[Path | None, typer.Option(help="scenario file to write")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON lines [default: a new file]")] = None,
) -> None:
    console = terminal()
    effort = Effort(parse_size(size) // 4, steps, rounds, iterations, repetitions)
    try:
        scene = scenario.load(name)
        privileges.become_able()
        settings = {"scenario": asdict(scene), "target": target, **asdict(effort), "seed": seed}
        with Results(output or default_output("calibrate"), "calibrate", settings) as results:
            traffic, final = calibrate(scene, target, effort, seed, results, console, near)
            results.add("calibrated", traffic=asdict(traffic), verdict=verdict(final, target))
            title = f"Calibration of {scene.name}: {scene.hosts} hosts at {scene.network.rate_mbit} Mbit/s"
            finish(results, title, [sheet(final, target)], NOTES, console)
    except (ScenarioError, LabError, TeamError, ValueError) as error:
        console.print(f"[red]{error}[/red]", highlight=False)
        raise typer.Exit(2) from error
    if write is not None:
        write.write_text(with_background(scenario.source(name), traffic), encoding="utf-8")
        console.print(f"{write} written", highlight=False)
    raise typer.Exit(0 if verdict(final, target) == "calibrated" else 1)
