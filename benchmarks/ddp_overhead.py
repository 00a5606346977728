"""A training step of DDP with 20 buckets over loopback, by Gloo, by the hook and by the backend.

python benchmarks/ddp_overhead.py          about 6 minutes on two cores
python benchmarks/ddp_overhead.py --quick  a minute: a try, no evidence
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from tailcut.bench.report import Bar, Sheet, finish, judge, summarize, terminal
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Peer, Team

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results/ddp_overhead.jsonl"
BUCKETS = 20
KB = 1 << 10


def case(ranks: int, bucket_bytes: int, iterations: int) -> Case:
    name = f"{ranks} ranks {BUCKETS} x {bucket_bytes // KB} KB"
    return Case(name, ranks, BUCKETS * bucket_bytes // 4, iterations, op="avg")


CASES = [
    case(ranks, bucket_bytes, iterations)
    for ranks in (2, 4)
    for bucket_bytes, iterations in ((4 * KB, 40), (64 * KB, 30), (1024 * KB, 10))
]
NOTES = [
    "An operation is a whole step: forward, backward with 20 buckets, copying the gradients out; the model "
    "does almost nothing else. The slowest rank counts; all gradients are compared with the right ones.",
    "`ddp-gloo` is DDP as it comes, `hook` is tailcut.attach on it, `backend` is DDP on the backend tailcut. "
    "`hook-timed` is the hook with a stopwatch inside, for the last table only.",
    "Outside native code: the training thread's processor time from DDP's call of the hook to its return, "
    "and from the end of backward until all futures are complete, without what the native module took; the "
    "stopwatch itself is in it, about 2 us.",
]


def contenders_of(door: str, team: Team) -> list[Contender]:
    if door == "gloo":
        return [Contender("ddp-gloo", team)]
    if door == "hook":
        return [Contender("hook", team), Contender("hook-timed", team, "timed")]
    return [Contender(door, team)]


def outside_native(results: Results) -> Sheet:
    """Per bucket, the mean over steps and ranks of a turn, of that the median; adds the same as records."""
    rows = []
    for each in results.of("case"):
        turns = [
            record["counters"]
            for record in results.of("samples")
            if record["case"] == each["name"] and record["contender"] == "hook-timed"
        ]
        if not turns:
            continue
        outside = sorted((turn["hook_ns"] - turn["native_ns"]) / turn["buckets"] / 1e3 for turn in turns)
        native = sorted(turn["native_ns"] / turn["buckets"] / 1e3 for turn in turns)
        found = {"outside_us": outside[len(outside) // 2], "native_us": native[len(native) // 2]}
        found |= {"outside_least_us": outside[0], "outside_most_us": outside[-1]}
        results.add("per bucket", case=each["name"], **found)
        rows.append((each["name"], *(f"{value:.0f}" for value in found.values())))
    heads = ("case", "outside native", "native", "outside, least turn", "outside, most")
    return Sheet(
        "Microseconds of processor time per bucket, in the hook and at the end of backward", heads, rows
    )


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    rounds: Annotated[int, typer.Option(help="turns of every contender in every case")] = 8,
    doors: Annotated[str, typer.Option(help="who takes part")] = "gloo,hook,backend",
    quick: Annotated[bool, typer.Option(help="3 short rounds into *-quick.jsonl: no evidence")] = False,
) -> None:
    """A step of DDP with 20 buckets over loopback: Gloo, tailcut's hook and tailcut's backend in turns."""
    console = terminal()
    path = output.with_stem(output.stem + "-quick") if quick else output
    cases = [each.shortened(5) for each in CASES] if quick else CASES
    rounds = min(rounds, 3) if quick else rounds
    names = doors.split(",")
    settings = {"rounds": rounds, "doors": names, "quick": quick}
    with Results(path, "ddp_overhead", settings) as results, contextlib.ExitStack() as stack:
        contenders = []
        for size in sorted({each.ranks for each in cases}):
            for door in names:
                console.print(f"starting {size} ranks of DDP, {door}")
                env = {"TAILCUT_TEST_DOOR": door}
                peer = Peer(f"ddp-{door}", HERE / "peers/ddp.py", env=env, python_path=(str(HERE / "peers"),))
                contenders += contenders_of(door, stack.enter_context(Team(peer, size)))
        fine = sweep(contenders, cases, rounds=rounds, results=results, console=console)
        bars = [
            Bar(
                f"{each.name}, {door} / gloo, p{q * 100:.0f}",
                (each.name, door, q),
                (each.name, "ddp-gloo", q),
                limit,
            )
            for each in cases
            for door, q, limit in (("hook", 0.5, 1.0), ("backend", 0.5, 1.0), ("hook", 0.99, None))
        ]
        sheets = [summarize(results, "ddp-gloo"), judge(results, bars), outside_native(results)]
        finish(results, "A step of DDP with 20 buckets over loopback", sheets, NOTES, console)
    raise typer.Exit(0 if fine else 1)


if __name__ == "__main__":
    typer.run(main)
