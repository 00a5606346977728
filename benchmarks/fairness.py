"""Figure 7: what tailcut takes of a link that TCP flows fill, and what is left to them.

Two hosts with cables of 1 Gbit/s; the switch's ports pass 250 Mbit/s, so the queue in the switch is what
all share. TCP flows go from host 0 to host 1 and fill it; beside them runs either tailcut (two ranks that
reduce without a pause: as many bytes as one vector go each way) or, for comparison, one more TCP flow.

    python benchmarks/fairness.py           about 5 minutes; needs root, nftables, ethtool
    python benchmarks/fairness.py --quick   a minute: a try, no evidence
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tailcut.bench import baselines
from tailcut.bench.figures import operations_within
from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Record, Results
from tailcut.bench.team import Team, TeamError
from tailcut.lab import Hosts

HERE = Path(__file__).resolve().parent
RATE_MBIT = 250.0
CABLE_MBIT = 1_000.0
CABLE_BURST_BYTES = 16_000  # a fast cable's 128 µs
ELEMENTS = 250_000  # 1 MB: short operations, so that the edges of the window matter little
IN_FLIGHT = 2  # so that no link idles while an operation ends
SETTLE_S = 3.0  # after both sides have started; slow start is not a share
PORT = 5_201
FAIR = (0.5, 2.0)  # the bar: our share over the fair one
NOTES = [
    f"Bottleneck {RATE_MBIT:.0f} Mbit/s in the switch, its queue 500 KB (16 ms); goodput in Mbit/s from "
    "host 0 to host 1.",
    "Fair is the sum of all goodputs over the number of flows, tailcut counted as one. The bar for tailcut "
    f"is {FAIR[0]:g} to {FAIR[1]:g} times fair in every round, and that the TCP flows keep at least "
    f"{FAIR[0]:g} of theirs.",
    "`TCP beside`: what the TCP flows get beside tailcut over what they get beside one more TCP flow.",
]


def tcp(hosts: Hosts, flows: int, control: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Connected flows that wait for their window."""
    script = [sys.executable, str(HERE / "flows.py")]
    where = [hosts.address(1), str(PORT), str(flows)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    receiver = hosts.spawn(1, [*script, "receive", *where], **pipes)
    _expect("ready", receiver)
    hosts.set_congestion(control)
    sender = hosts.spawn(0, [*script, "send", *where], **pipes)
    _expect(f"ready {control}", sender)
    return sender, receiver


def _expect(line: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if (got := process.stdout.readline()) != f"{line}\n":
        raise RuntimeError(f"the TCP flows said {got!r} instead of {line!r} (exit status {process.poll()})")


def share(hosts: Hosts, team: Team | None, flows: int, control: str, seconds: float) -> Record:
    """Goodputs in Mbit/s of `flows` TCP flows and of tailcut; without a team, of one more flow instead."""
    count = flows + (team is None)
    processes = tcp(hosts, count, control) if count else ()
    before = hosts.counters(1)
    begin = time.monotonic_ns() + round(SETTLE_S * 1e9)
    end = begin + round(seconds * 1e9)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{begin} {end}\n")
        process.stdin.flush()
    ours, counters = 0.0, {}
    if team is not None:
        order = {"do": "stream", "elements": ELEMENTS, "in_flight": IN_FLIGHT, "seed": 1}
        answers = team.ask({**order, "seconds": SETTLE_S + seconds + 0.3}, timeout_s=SETTLE_S + seconds + 60)
        ours = operations_within(answers[1]["begin_ns"], answers[1]["ends_ns"], begin, end)
        ours *= 4 * ELEMENTS * 8e-6 / seconds
        counters = answers[0]["counters"]
    bins: list[list[int]] = []
    if processes:
        bins = json.loads(processes[1].communicate(timeout=seconds + 30)[0])
        processes[0].communicate(timeout=30)
    goodputs = [sum(flow) * 8e-6 / seconds for flow in bins]
    if team is None:
        ours = goodputs.pop(0)
    drops = hosts.counters(1).queue_drops_in - before.queue_drops_in
    return {
        "ours_mbit": ours,
        "theirs_mbit": goodputs,
        "bins": bins,
        "queue_drops": drops,
        "counters": counters,
    }


def tables(results: Results) -> Sheet:
    rows = []
    shares = results.of("share")
    for control, flows in dict.fromkeys((record["control"], record["flows"]) for record in shares):
        for who in ("tailcut", "tcp"):
            same = [r for r in shares if (r["control"], r["flows"], r["who"]) == (control, flows, who)]
            if same:
                peers = [r for r in shares if (r["control"], r["flows"], r["who"]) == (control, flows, "tcp")]
                rows.append(row(results, same, peers, control, flows, who))
    heads = (
        "beside",
        "who",
        "rounds",
        "our Mbit/s",
        "each TCP",
        "fair",
        "ours / fair",
        "TCP beside",
        "verdict",
    )
    return Sheet("Shares of one link", heads, rows)


def row(
    results: Results, same: list[Record], peers: list[Record], control: str, flows: int, who: str
) -> tuple[str, ...]:
    ours = [record["ours_mbit"] for record in same]
    theirs = [sum(record["theirs_mbit"]) for record in same]
    fair = [(mine + others) / (flows + 1) for mine, others in zip(ours, theirs, strict=True)]
    parts = [mine / equal for mine, equal in zip(ours, fair, strict=True)]
    beside = (
        mean(theirs) / mean([sum(record["theirs_mbit"]) for record in peers]) if flows and peers else None
    )
    kept = [others / flows / equal if flows else 1.0 for others, equal in zip(theirs, fair, strict=True)]
    inside = [FAIR[0] <= part <= FAIR[1] and left >= FAIR[0] for part, left in zip(parts, kept, strict=True)]
    verdict = ""
    if who == "tailcut" and flows:
        verdict = "met" if all(inside) else "inconclusive" if any(inside) else "missed"
    if verdict and len(same) < 3:
        verdict = "inconclusive"
    results.add(
        "verdict", control=control, flows=flows, who=who, ours_over_fair=parts, beside=beside, verdict=verdict
    )
    return (
        f"{flows} {control}" if flows else "nothing",
        who,
        str(len(same)),
        f"{mean(ours):.1f}",
        f"{mean(theirs) / flows:.1f}" if flows else "",
        f"{mean(fair):.1f}",
        f"{mean(parts):.2f} [{min(parts):.2f}, {max(parts):.2f}]",
        f"{beside:.2f}" if beside is not None else "",
        verdict,
    )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = HERE
    / "results/fairness.jsonl",
    rounds: Annotated[int, typer.Option(help="how often every pairing is measured")] = 3,
    seconds: Annotated[float, typer.Option(help="length of one measurement")] = 10.0,
    flows: Annotated[str, typer.Option(help="numbers of TCP flows; 0: tailcut alone")] = "0,1,16",
    controls: Annotated[str, typer.Option(help="TCP's congestion controls")] = "cubic,bbr",
    ours: Annotated[bool, typer.Option(help="whether tailcut takes part")] = True,
    quick: Annotated[bool, typer.Option(help="1 round of 3 s into *-quick.jsonl: no evidence")] = False,
) -> None:
    """Shares of one link: tailcut beside TCP flows, and one more TCP flow in its place."""
    console = terminal()
    path = output.with_stem(output.stem + "-quick") if quick else output
    rounds, seconds = (1, 3.0) if quick else (rounds, seconds)
    numbers = [int(number) for number in flows.split(",")]
    names = controls.split(",")
    pairings = [("none", 0, "tailcut")] if 0 in numbers and ours else []
    for control in names:
        for number in filter(None, numbers):
            pairings += [(control, number, who) for who in ("tailcut", "tcp") if ours or who == "tcp"]
    settings = {"rounds": rounds, "seconds": seconds, "rate_mbit": RATE_MBIT, "bytes": 4 * ELEMENTS}
    fine = True
    with Results(path, "fairness", settings) as results, Hosts(2, rate_mbit=CABLE_MBIT) as hosts:
        hosts.set_rate(CABLE_MBIT, burst_bytes=CABLE_BURST_BYTES)
        for host in (0, 1):
            hosts.set_rate(RATE_MBIT, towards=host)
        rng = random.Random(1)
        for number in range(rounds):
            for control, count, who in rng.sample(pairings, len(pairings)):
                console.print(f"round {number + 1}/{rounds}: {who} beside {count} {control}")
                try:
                    record = measure(hosts, who, count, control, seconds)
                except TeamError as error:
                    console.print(f"[red]failed:[/red] {error}", highlight=False)
                    results.add(
                        "failure", control=control, flows=count, who=who, round=number, error=str(error)
                    )
                    fine = False
                    continue
                results.add("share", control=control, flows=count, who=who, round=number, **record)
        if results.of("share"):
            finish(results, "Shares of one link", [tables(results)], NOTES, console)
    raise typer.Exit(0 if fine else 1)


def measure(hosts: Hosts, who: str, flows: int, control: str, seconds: float) -> Record:
    """One measurement; tailcut's ranks are new each time, so that no rate learned before helps or hurts."""
    if who == "tcp":
        return share(hosts, None, flows, control, seconds)
    with Team(baselines.tailcut(), 2, hosts) as team:
        return share(hosts, team, flows, control, seconds)


if __name__ == "__main__":
    typer.run(main)
