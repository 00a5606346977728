"""Figure 2: AllReduce between hosts of the lab at 250 Mbit/s, clean and with random loss of single packets.

python benchmarks/shaped.py           about half an hour; needs root, nftables, ethtool
python benchmarks/shaped.py --quick   two minutes: a try, no evidence
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tailcut.bench import baselines
from tailcut.bench.report import Bar, finish, judge, summarize, terminal
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Team
from tailcut.lab import Hosts

RESULTS = Path(__file__).resolve().parent / "results/shaped.jsonl"
RATE_MBIT = 250.0
MB = 1_000_000  # the references in the issue are for 2,000,000 bytes
SIZES = {2: 10, 25: 3}  # MB: operations in a turn
LOSSES = {2: (0.0, 0.1, 1.0, 5.0), 25: (0.0, 1.0)}  # MB: per cent
TAIL_BARS = {0.1: 1.3, 1.0: 1.3, 5.0: 2.0}  # loss in per cent: p99 over the clean median
KNOWN = {
    "gloo": baselines.gloo,
    "gloo-cubic": lambda: baselines.gloo("cubic"),
    "tailcut": baselines.tailcut,
}
NOTES = [
    f"One namespace for each rank, {RATE_MBIT:.0f} Mbit/s a cable and direction, MTU 1500, segmented before "
    "the wire; loss by nftables in the switch, of single packets, acknowledgements included.",
    "gloo runs with the machine's congestion control and, as gloo-cubic, with cubic.",
    "Time starts when a rank leaves its library's own barrier; the slowest rank counts; all results are "
    "compared with the right ones.",
    "`wire`: bytes on all cables for one operation, barrier included, in vectors of S bytes. `drops`: "
    "packets that found a queue full. `resent`: packets tailcut sent again.",
    "`idle`: of all cores, while measured: near 0 the processor was the limit, not the network.",
]


def name_of(hosts: int, megabytes: int, loss: float) -> str:
    return f"{hosts} hosts {megabytes} MB " + (f"{loss:g} % loss" if loss else "clean")


def cases_of(hosts: int, quick: bool) -> list[Case]:
    cases = [
        Case(
            name_of(hosts, megabytes, loss),
            ranks=hosts,
            elements=megabytes * MB // 4,
            iterations=iterations,
            warmup=2 if megabytes == 2 else 1,
            loss_percent=loss,
            timeout_s=300.0,
        )
        for megabytes, iterations in SIZES.items()
        for loss in LOSSES[megabytes]
    ]
    return [case.shortened(3) for case in cases if case.elements < 2 * MB] if quick else cases


def bars_of(hosts: int) -> list[Bar]:
    bars = []
    for megabytes in SIZES:
        clean = name_of(hosts, megabytes, 0)
        for peer in ("gloo", "gloo-cubic"):
            bars.append(
                Bar(f"{clean}, tailcut / {peer}, p50", (clean, "tailcut", 0.5), (clean, peer, 0.5), 1.02)
            )
        for loss in LOSSES[megabytes][1:]:
            lossy = name_of(hosts, megabytes, loss)
            for who in ("tailcut", "gloo", "gloo-cubic"):
                limit = TAIL_BARS[loss] if who == "tailcut" and megabytes == 2 else None
                what = f"{lossy}, {who}, p99 / its own clean p50"
                bars.append(Bar(what, (lossy, who, 0.99), (clean, who, 0.5), limit))
    return bars


def contenders_of(team: Team) -> list[Contender]:
    if team.peer.name != "tailcut":
        return [Contender(team.peer.name, team)]
    return [
        Contender("tailcut", team, "auto"),
        Contender("tailcut-ring", team, "ring"),
        Contender("tailcut-transpose", team, "transpose"),
    ]


def measure(n: int, peers: list[str], rounds: int, quick: bool, results: Results) -> bool:
    """One lab of n hosts with all teams in it."""
    console = terminal()
    with Hosts(n, rate_mbit=RATE_MBIT) as hosts, contextlib.ExitStack() as stack:
        contenders = []
        for name in peers:
            console.print(f"starting {n} ranks of {name}")
            contenders += contenders_of(stack.enter_context(Team(KNOWN[name](), n, hosts)))
        fine = sweep(
            contenders,
            cases_of(n, quick),
            rounds=rounds,
            results=results,
            console=console,
            prepare=lambda case: hosts.set_loss(case.loss_percent),
        )
        hosts.set_loss(0)  # so that the teams part in peace
        counters = [asdict(hosts.counters(host)) for host in range(n)]
        results.add("lab", hosts=n, oversize=hosts.oversize(), lost=hosts.lost(), counters=counters)
        if hosts.oversize():
            console.print(f"[red]{hosts.oversize()} packets were larger than the MTU: not like a wire[/red]")
            fine = False
    return fine


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    rounds: Annotated[int, typer.Option(help="turns of every contender in every case")] = 12,
    hosts: Annotated[str, typer.Option(help="sizes of the lab, separated by commas")] = "2,4",
    peers: Annotated[str, typer.Option(help="who takes part")] = "gloo,gloo-cubic,tailcut",
    quick: Annotated[
        bool, typer.Option(help="3 short rounds, 2 MB alone, into *-quick.jsonl: no evidence")
    ] = False,
) -> None:
    """AllReduce between hosts of the lab: gloo and tailcut in turns, clean and with loss."""
    names = [name.strip() for name in peers.split(",")]
    if unknown := [name for name in names if name not in KNOWN]:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(KNOWN)}")
    sizes = [int(size) for size in hosts.split(",")]
    path = output.with_stem(output.stem + "-quick") if quick else output
    rounds = min(rounds, 3) if quick else rounds
    settings = {"rounds": rounds, "peers": names, "quick": quick, "rate_mbit": RATE_MBIT, "hosts": sizes}
    with Results(path, "shaped", settings) as results:
        fine = True
        for n in sizes:
            fine = measure(n, names, rounds, quick, results) and fine
        bars = [bar for n in sizes for bar in bars_of(n)]
        sheets = [summarize(results, "gloo"), judge(results, bars)]
        finish(results, f"AllReduce between hosts at {RATE_MBIT:.0f} Mbit/s", sheets, NOTES, terminal())
    raise typer.Exit(0 if fine else 1)


if __name__ == "__main__":
    typer.run(main)
