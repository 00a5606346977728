"""Figure 7: what tailcut takes of a link that TCP flows fill, and what is left to them.

Two hosts with cables of 1 Gbit/s; the switch's ports pass 250 Mbit/s, so the queue in the switch is what
all share. TCP flows go from host 0 to host 1 and fill it; beside them runs either tailcut (two ranks that
reduce without a pause: as many bytes as one vector go each way) or, for comparison, one more TCP flow:
of the same kind, and of CUBIC.

    python benchmarks/fairness.py           about 8 minutes; needs root, nftables, ethtool
    python benchmarks/fairness.py --quick   a minute: a try, no evidence
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
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
PORTS = (5_201, 5_202)  # of the flows that fill the link, and of the one that joins them
FAIR = (0.5, 2.0)  # the bar: our share over the fair one
ROUNDS_LEAST = 3  # fewer say nothing
AS_CUBIC = 1.05  # the most we may take of what a CUBIC flow takes, where that is outside the bar
NOTES = [
    f"Bottleneck {RATE_MBIT:.0f} Mbit/s in the switch, its queue 500 KB (16 ms); goodput in Mbit/s from "
    "host 0 to host 1.",
    "Fair is the sum of all goodputs over the number of flows, tailcut counted as one. The bar for tailcut "
    f"is {FAIR[0]:g} to {FAIR[1]:g} times fair in every round, and that the TCP flows keep at least "
    f"{FAIR[0]:g} of theirs.",
    "`TCP beside`: what the TCP flows get over what they get beside one more of their own kind.",
    "BBR gives way to any flow that fills queues where the way is as short as here (tens of µs, against a "
    "queue of 16 ms): the rows of `cubic` beside BBR say how much. `as CUBIC`: outside the bar, but no "
    "further than a CUBIC flow in tailcut's place.",
]


def tcp(
    hosts: Hosts, flows: int, control: str, port: int
) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Connected flows that wait for their window."""
    script = [sys.executable, str(HERE / "flows.py")]
    where = [hosts.address(1), str(port), str(flows)]
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


def share(hosts: Hosts, team: Team | None, who: str, flows: int, control: str, seconds: float) -> Record:
    """Goodputs in Mbit/s of `flows` TCP flows, and beside them of the team or of one more, of kind `who`."""
    processes = [tcp(hosts, flows, control, PORTS[0])] if flows else []
    if team is None:
        processes.append(tcp(hosts, 1, who, PORTS[1]))
    before = hosts.counters(1)
    begin = time.monotonic_ns() + round(SETTLE_S * 1e9)
    end = begin + round(seconds * 1e9)
    for process in itertools.chain.from_iterable(processes):
        assert process.stdin is not None
        process.stdin.write(f"{begin} {end}\n")
        process.stdin.flush()
    counters = {}
    if team is not None:
        order = {"do": "stream", "elements": ELEMENTS, "in_flight": IN_FLIGHT, "seed": 1}
        answers = team.ask({**order, "seconds": SETTLE_S + seconds + 0.3}, timeout_s=SETTLE_S + seconds + 60)
        ours = operations_within(answers[1]["begin_ns"], answers[1]["ends_ns"], begin, end)
        ours *= 4 * ELEMENTS * 8e-6 / seconds
        counters = answers[0]["counters"]
    bins: list[list[int]] = []
    for sender, receiver in processes:
        bins += json.loads(receiver.communicate(timeout=seconds + 30)[0])
        sender.communicate(timeout=30)
    goodputs = [sum(flow) * 8e-6 / seconds for flow in bins]
    if team is None:
        ours = goodputs.pop()
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
        same = [r for r in shares if (r["control"], r["flows"]) == (control, flows)]
        by_who = {who: [r for r in same if r["who"] == who] for who in ("tailcut", *rivals(control))}
        rows += [row(results, by_who, control, flows, who) for who in by_who if by_who[who]]
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


def rivals(control: str) -> list[str]:
    """The kinds of TCP that take tailcut's place for comparison."""
    return list(dict.fromkeys([control, "cubic"])) if control != "none" else []


def row(
    results: Results, by_who: dict[str, list[Record]], control: str, flows: int, who: str
) -> tuple[str, ...]:
    same = by_who[who]
    ours = [record["ours_mbit"] for record in same]
    theirs = [sum(record["theirs_mbit"]) for record in same]
    fair = [(mine + others) / (flows + 1) for mine, others in zip(ours, theirs, strict=True)]
    parts = [mine / equal for mine, equal in zip(ours, fair, strict=True)]
    peers = [sum(record["theirs_mbit"]) for record in by_who.get(control, [])]
    beside = mean(theirs) / mean(peers) if peers else None
    kept = [others / flows / equal if flows else 1.0 for others, equal in zip(theirs, fair, strict=True)]
    inside = [FAIR[0] <= part <= FAIR[1] and left >= FAIR[0] for part, left in zip(parts, kept, strict=True)]
    cubic = [record["ours_mbit"] for record in by_who.get("cubic", [])] if control != "cubic" else []
    as_cubic = bool(cubic) and max(ours) <= AS_CUBIC * mean(cubic)
    verdict = judge(inside, as_cubic) if who == "tailcut" and flows else ""
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


def judge(inside: list[bool], as_cubic: bool) -> str:
    if len(inside) < ROUNDS_LEAST:
        return "inconclusive"
    if all(inside):
        return "met"
    if as_cubic:
        return "as CUBIC"
    return "inconclusive" if any(inside) else "missed"


def mean(values: Sequence[float]) -> float:
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
    pairings: list[tuple[str, int, str]] = [("none", 0, "tailcut")] if 0 in numbers and ours else []
    for control in names:
        for number in filter(None, numbers):
            pairings += [(control, number, who) for who in [*(["tailcut"] if ours else []), *rivals(control)]]
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
    if who != "tailcut":
        return share(hosts, None, who, flows, control, seconds)
    with Team(baselines.tailcut(), 2, hosts) as team:
        return share(hosts, team, who, flows, control, seconds)


if __name__ == "__main__":
    typer.run(main)
