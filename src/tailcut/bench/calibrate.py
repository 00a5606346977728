"""Finds the background traffic at which Gloo's AllReduce shows a wanted tail (P99 over P50) on this machine.

What is turned is the rate of the background while it is on: an operation in a burst gets what is left of the
link, so a higher rate makes the slow operations slower and leaves the median alone, as long as bursts take
less than half of the time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from tailcut.bench import baselines
from tailcut.bench.figures import Ratio, Rounds, quantile, ratio
from tailcut.bench.report import Sheet
from tailcut.bench.results import Results
from tailcut.bench.team import Team
from tailcut.lab import VALID, Lab, Scenario, open_scenario
from tailcut.lab.background import Background
from tailcut.lab.scenario import Background as Traffic

SHARES = (0.05, 0.95)  # of the link's rate: where the search begins and ends
NEAR = (0.95, 1.05)  # of a rate that is nearly right: where the search begins and ends
WIDTH_MAX = 0.15  # the interval's half width over the value; wider is inconclusive
SETTLE_S = 1.0  # until the rings' connections have found their rate


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure."""

    elements: int  # float32 of one operation
    steps: int  # of the search
    rounds: int  # blocks of the bootstrap, in each step
    iterations: int  # operations in a round
    repetitions: int  # of the final measurement, each with a seed of its own; four times a step's rounds


@dataclass(frozen=True, slots=True)
class Reading:
    """One setting, measured."""

    rate_mbit: float
    seed: int
    tail: Ratio  # P99 / P50, block bootstrap over rounds
    p50_ns: float
    p99_ns: float
    operations: int
    background_mbit: float | None
    on_share: float
    invalid_rounds: int

    def holds(self, target: float) -> bool:
        """Whether the interval holds the target and is narrow enough to say something."""
        return self.tail.low <= target <= self.tail.high and self.width <= WIDTH_MAX

    @property
    def width(self) -> float:
        return (self.tail.high - self.tail.low) / 2 / self.tail.value


def search(tail_at: Callable[[float], float], target: float, low: float, high: float, steps: int) -> float:
    """The rate at which the tail is the target: bisection, because a higher rate makes a longer tail."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_at(middle) < target else (low, middle)
    return (low + high) / 2


def calibrate(
    scene: Scenario,
    target: float,
    effort: Effort,
    seed: int,
    results: Results,
    console: Console,
    near_mbit: float | None = None,
) -> tuple[Traffic, list[Reading]]:
    """The traffic found, and the final readings with it. near_mbit: a rate that is nearly right."""
    network, traffic = scene.network, scene.background
    if traffic is None or not traffic.on_ms or network.rate_mbit is None:
        raise ValueError(f"{scene.name}: calibrate needs a rate, and a background with on_ms and off_ms")
    quiet = replace(scene, background=None)
    with open_scenario(quiet, seed=seed) as lab, Team(baselines.gloo(), scene.hosts, lab.hosts) as team:

        def read(rate_mbit: float, rounds: int, with_seed: int) -> Reading:
            found = _read(lab, team, replace(traffic, rate_mbit=rate_mbit), effort, rounds, with_seed)
            fields = asdict(found)
            results.add("calibration", target=target, **fields)
            console.print(_line(found), highlight=False)
            return found

        shares, of_mbit = (NEAR, near_mbit) if near_mbit else (SHARES, network.rate_mbit)
        low, high = (share * of_mbit for share in shares)
        rate = search(
            lambda rate_mbit: read(rate_mbit, effort.rounds, seed).tail.value, target, low, high, effort.steps
        )
        rate = round(rate, 1)
        console.print(f"found {rate:g} Mbit/s; now for good, with other seeds")
        final = [read(rate, 4 * effort.rounds, seed + 1 + number) for number in range(effort.repetitions)]
    return replace(traffic, rate_mbit=rate), final


def verdict(final: Sequence[Reading], target: float) -> str:
    """In words: whether every repetition shows the target."""
    if any(reading.invalid_rounds for reading in final):
        return "inconclusive: the cores were too busy in some rounds"
    if all(reading.holds(target) for reading in final):
        return "calibrated"
    if any(reading.width > WIDTH_MAX for reading in final):
        return "inconclusive: the interval is too wide; measure longer (--rounds)"
    return "missed: try again, or with other lengths of bursts"


def sheet(final: Sequence[Reading], target: float) -> Sheet:
    heads = ("seed", "background Mbit/s", "on", "operations", "p50 ms", "p99 ms", "p99 / p50", "holds it")
    rows = [
        (
            str(reading.seed),
            f"{reading.background_mbit or 0:.1f}",
            f"{reading.on_share:.0%}",
            str(reading.operations),
            f"{reading.p50_ns / 1e6:.1f}",
            f"{reading.p99_ns / 1e6:.1f}",
            f"{reading.tail} ±{reading.width:.0%}",
            "yes" if reading.holds(target) else "no",
        )
        for reading in final
    ]
    return Sheet(f"Gloo's tail, wanted {target:g}: {verdict(final, target)}", heads, rows)


def with_background(text: str, traffic: Traffic) -> str:
    """The scenario's text with this traffic instead of its own."""
    rest = re.sub(r"(?ms)^(#[^\n]*\n)*\[background\].*?(?=^\[|\Z)", "", text).rstrip()
    hosts = ", ".join(map(str, traffic.hosts))
    lines = [
        "# Found by `tailcut lab calibrate`; on another machine find your own.",
        "[background]",
        f"members = {traffic.members}",
        f"hosts = [{hosts}]",
        f"message_bytes = {traffic.message_bytes}",
        f"on_ms = {traffic.on_ms:g}",
        f"off_ms = {traffic.off_ms:g}",
        f"rate_mbit = {traffic.rate_mbit:g}",
    ]
    return rest + "\n\n" + "\n".join(lines) + "\n"


def _read(lab: Lab, team: Team, traffic: Traffic, effort: Effort, rounds: int, seed: int) -> Reading:
    samples: dict[int, list[int]] = {}
    invalid = 0
    with Background(lab.hosts, traffic, seed) as background:
        time.sleep(SETTLE_S)
        before = background.read()
        for number in range(rounds):
            with lab.cell() as cell:
                turn = team.measure(effort.elements, iterations=effort.iterations, warmup=1, seed=number)
            samples[number] = turn.durations_ns
            invalid += cell.record.verdict != VALID
        after = background.read()
    return _reading(samples, traffic, seed, invalid, after.mbit_since(before), after.on_share_since(before))


def _reading(
    samples: Rounds, traffic: Traffic, seed: int, invalid: int, mbit: float, on_share: float
) -> Reading:
    everything = [duration for part in samples.values() for duration in part]
    return Reading(
        rate_mbit=traffic.rate_mbit or 0.0,
        seed=seed,
        tail=ratio(samples, 0.99, samples, 0.5),
        p50_ns=quantile(everything, 0.5),
        p99_ns=quantile(everything, 0.99),
        operations=len(everything),
        background_mbit=mbit,
        on_share=on_share,
        invalid_rounds=invalid,
    )


def _line(reading: Reading) -> str:
    busy = f", cores too busy in {reading.invalid_rounds} rounds" if reading.invalid_rounds else ""
    return (
        f"background {reading.rate_mbit:.1f} Mbit/s: p50 {reading.p50_ns / 1e6:.1f} ms, "
        f"p99 {reading.p99_ns / 1e6:.1f} ms, p99 / p50 {reading.tail} ({reading.operations} operations{busy})"
    )
