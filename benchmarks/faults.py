"""Figure 4: one of four ranks is killed, or stopped for a while, at random moments of a stream.

python benchmarks/faults.py           about 7 minutes on two cores
python benchmarks/faults.py --quick   half a minute: a try, no evidence

Killed: every survivor must raise PeerLost that names exactly the killed rank, within liveness + 100 ms.
Stopped for less than liveness: all goes on and is right. For more: the survivors raise PeerLost that names
it, and the stopped rank gets an error when it resumes. Nobody may be without an answer for liveness + 10 s.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import trial
import typer

from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Record, Results

RESULTS = Path(__file__).resolve().parent / "results/faults.jsonl"
RANKS = 4
SLACK_S = 0.1  # above liveness, for the exception
EARLIEST_SHARE = (
    0.5  # of liveness; the last word of the killed rank may be older than the signal, but not so old
)
HANG_S = 10.0  # above liveness
LATEST_S = 0.5  # the fault comes so long after the start of the stream at most
PAUSES_S = (0.1, 10.0)
QUICK_PAUSES_S = (0.1, 1.0)
# A pause that differs from liveness by less may end either way: silence counts from the last packet heard,
# and the stopped rank must be scheduled again before it can answer.
EDGE_S = 0.1
NOTES = [
    "The moment of the fault is drawn from 0 to 0.5 s after the stream began; lengths up to 2 MB, all "
    "schedules, ranks that now and then pause for up to 5 ms.",
    "Times run from the signal to the exception, both on the machine's monotonic clock.",
    f"A pause within {EDGE_S:g} s of liveness may end either way, but the same way for all survivors.",
]


def fault(seed: str, liveness: float, pause: float | None) -> Record:
    """One group, one fault: killed (pause None) or stopped for so many seconds. What came of each rank."""
    draw = random.Random(seed)
    victim, delay = draw.randrange(RANKS), draw.uniform(0, LATEST_S)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        stop = Path(folder) / "stop"
        settings = {"liveness_s": liveness}
        with trial.ranks.Ranks(trial.run_stream, RANKS, seed, str(stop), settings) as running:
            running.await_output(trial.STREAMING)
            time.sleep(delay)
            pid = running.pids[victim]
            struck = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL if pause is None else signal.SIGSTOP)
            resumed = None
            if pause is not None:
                time.sleep(pause)
                resumed = time.monotonic_ns()
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.2)  # the stream goes on for a moment, if it can
                stop.touch()
            reports = running.wait(liveness + HANG_S)
    return {
        "seed": seed,
        "victim": victim,
        "delay_s": delay,
        "liveness_s": liveness,
        "pause_s": pause,
        "ranks": [_ended(report, struck, resumed if report.rank == victim else None) for report in reports],
    }


def _ended(report: Any, struck: int, resumed: int | None) -> Record:
    """How a rank ended; `after_s` from the signal, for a stopped rank from the one that resumed it."""
    if report.error is not None:
        how = "hung" if isinstance(report.error, trial.ranks.Hung) else type(report.error).__name__
        return {"error": how, "text": report.text()}
    value = dict(report.value)
    value["after_s"] = (value.pop("ended_ns") - (resumed or struck)) / 1e9
    value["pauses_seen"] = value.pop("counters").get("pauses")
    return value


def survivors(record: Record) -> list[Record]:
    return [ended for rank, ended in enumerate(record["ranks"]) if rank != record["victim"]]


def named(record: Record, ended: Record) -> bool:
    """Whether this rank raised PeerLost that names exactly the victim."""
    return ended.get("error") == "PeerLost" and ended["ranks"] == [record["victim"]]


def complaint(record: Record) -> str:
    """What is wrong with the outcome of one fault; empty when nothing is."""
    pause, liveness = record["pause_s"], record["liveness_s"]
    if any(ended.get("error") == "hung" for ended in record["ranks"]):
        return "a rank hung"
    went_on = all("error" not in ended and not ended["wrong"] for ended in record["ranks"])
    broken = all(named(record, ended) for ended in survivors(record))
    if pause is None:
        if not broken:
            return "a survivor did not raise PeerLost naming exactly the killed rank"
        times = [ended["after_s"] for ended in survivors(record)]
        if min(times) < liveness * EARLIEST_SHARE:
            return f"a survivor raised after {min(times):.3f} s, which is not liveness"
        late = max(times) - liveness - SLACK_S
        return f"a survivor raised {late * 1e3:.0f} ms too late" if late > 0 else ""
    broken = broken and "error" in record["ranks"][record["victim"]]
    if pause < liveness - EDGE_S:
        return "" if went_on else "a pause below liveness did not end well"
    if pause > liveness + EDGE_S:
        return "" if broken else "a pause above liveness did not end with the errors it should"
    return "" if went_on or broken else "a pause near liveness ended differently on the survivors"


def kind_of(record: Record) -> str:
    if record["pause_s"] is None:
        return "killed"
    near = record["pause_s"] - record["liveness_s"]
    return (
        "stopped, near liveness" if abs(near) <= EDGE_S else f"stopped, {'longer' if near > 0 else 'shorter'}"
    )


def run_all(plan: Sequence[tuple[str, float, float | None]], results: Results, console: Any) -> list[Record]:
    found = []
    for number, (seed, liveness, pause) in enumerate(plan, 1):
        outcome = fault(seed, liveness, pause)
        record = results.add("fault", what=kind_of(outcome), complaint=complaint(outcome), **outcome)
        found.append(record)
        length = "" if pause is None else f" for {pause:.2f} s"
        said = record["complaint"] or "right"
        what = f"{record['what']}{length}, rank {record['victim']}"
        console.print(f"{number}/{len(plan)} {what}: {said}", highlight=False)
    return found


def pauses(count: int, bounds: tuple[float, float], draw: random.Random) -> list[float]:
    """One length from each of `count` equal parts of the range, in random order: the total is known."""
    low, high = bounds
    width = (high - low) / max(1, count)
    lengths = [low + width * (number + draw.random()) for number in range(count)]
    draw.shuffle(lengths)
    return lengths


def table(found: Sequence[Record]) -> Sheet:
    rows = []
    for what in dict.fromkeys(record["what"] for record in found):
        chosen = [record for record in found if record["what"] == what]
        survived = [ended for record in chosen for ended in survivors(record) if "error" in ended]
        resumed = [record["ranks"][record["victim"]] for record in chosen if record["pause_s"]]
        rows.append(
            (
                what,
                str(len(chosen)),
                f"{chosen[0]['liveness_s']:g}",
                _spread([ended["after_s"] for ended in survived if "after_s" in ended]),
                _spread([ended["after_s"] for ended in resumed if "error" in ended and "after_s" in ended]),
                str(sum(ended.get("error") == "hung" for record in chosen for ended in record["ranks"])),
                str(sum(ended.get("wrong", 0) for record in chosen for ended in record["ranks"])),
                str(sum(bool(record["complaint"]) for record in chosen)),
            )
        )
    to_error = "s from signal to error, survivors: min / median / max"
    heads = (
        "fault",
        "times",
        "liveness s",
        to_error,
        "the stopped rank, from SIGCONT",
        "hung",
        "wrong",
        "not right",
    )
    return Sheet("Faults of one of four ranks", heads, rows)


def _spread(times: Sequence[float]) -> str:
    if not times:
        return "—"
    return f"{min(times):.3f} / {statistics.median(times):.3f} / {max(times):.3f}"


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    times: Annotated[int, typer.Option(help="faults of each kind")] = 50,
    liveness: Annotated[float, typer.Option(help="seconds, where a rank is killed")] = 1.0,
    pause_liveness: Annotated[float, typer.Option(help="seconds, where a rank is stopped")] = 5.0,
    seed: Annotated[int, typer.Option(help="of ranks, moments, lengths of pauses and operations")] = 1,
    quick: Annotated[
        bool, typer.Option(help="3 of each, pauses up to 1 s around a liveness of 0.5 s")
    ] = False,
) -> None:
    """SIGKILL and SIGSTOP of one of four ranks on loopback at random moments."""
    console = terminal()
    path = output.with_stem(output.stem + "-quick") if quick else output
    if quick:
        times, pause_liveness = min(times, 3), min(pause_liveness, 0.5)
    lengths = pauses(times, QUICK_PAUSES_S if quick else PAUSES_S, random.Random(seed))
    settings = {"times": times, "liveness_s": liveness, "pause_liveness_s": pause_liveness, "seed": seed}
    with Results(path, "faults", settings) as results:
        verdicts = trial.Verdicts(results, console)
        plan: list[tuple[str, float, float | None]]
        plan = [(f"{seed} kill {number}", liveness, None) for number in range(times)]
        plan += [(f"{seed} pause {i}", pause_liveness, length) for i, length in enumerate(lengths)]
        found = run_all(plan, results, console)
        for what in dict.fromkeys(record["what"] for record in found):
            chosen = [record for record in found if record["what"] == what]
            complaints = sorted({record["complaint"] for record in chosen} - {""})
            right = sum(not record["complaint"] for record in chosen)
            said = "; ".join([f"{right} of {len(chosen)} right", *complaints])
            verdicts.check(what, not complaints, said)
        notes = [*NOTES, f"Killed with liveness {liveness:g} s (default 5 s), to keep it short."]
        finish(results, "Killed and stopped ranks", [table(found), verdicts.sheet()], notes, console)
    raise typer.Exit(0 if verdicts.fine else 1)


if __name__ == "__main__":
    typer.run(main)
