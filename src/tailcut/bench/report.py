"""Tables of a run, for the terminal and as Markdown: all contenders, and the bars they had to reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailcut.bench.figures import Ratio, Rounds, ratio, resolvable, summary
from tailcut.bench.results import Record, Results
from tailcut.bench.sweep import rounds_of
from tailcut.types import DType

WIDTH_OF_FILES = 180  # characters
WIDTH_MAX = 400  # of a table; none of ours comes near
COLOURS = {
    "met": "green",
    "missed": "red",
    "inconclusive": "yellow",
    "faster": "green",
    "slower": "red",
    "failed": "red",
    "invalid": "red",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio that must be at most `limit`: (case, contender, quantile) over (case, contender, quantile)."""

    what: str
    upper: tuple[str, str, float]
    lower: tuple[str, str, float]
    limit: float | None  # None: no bar, only to be told


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table: a title, heads and rows of text."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def summaries(results: Results, reference: str) -> list[Record]:
    """A record for every contender in every case, added to the results, with its ratios to the reference."""
    found = []
    samples = results.of("samples")
    for case in results.of("case"):
        base = rounds_of(samples, case["name"], reference)
        for contender in dict.fromkeys(record["name"] for record in results.of("contender")):
            rounds = rounds_of(samples, case["name"], contender)
            if not rounds:
                continue
            record = _summary_record(case, contender, rounds, samples)
            median, tail = (against(rounds, base, q) for q in (0.5, 0.99))
            record |= {"reference": reference, **_interval(median), "p99_ratio": _interval(tail)}
            results.add("summary", **record)
            found.append(record)
    return found


def summarize(results: Results, reference: str) -> Sheet:
    """A row for every contender in every case; adds the same as records."""
    rows = [_summary_row(record) for record in summaries(results, reference)]
    times = ("p50 ms", "p99 ms", "p99.9 ms", "max ms")
    heads = (
        "case",
        "contender",
        "operations",
        *times,
        "MB/s",
        "wire",
        "drops",
        "resent",
        "idle",
        f"p50 / {reference}",
    )
    return Sheet("Time of an operation: the maximum over ranks", heads, rows)


def judge(results: Results, bars: Sequence[Bar]) -> Sheet:
    """The verdict on every bar whose two sides were measured; adds the same as records."""
    rows = []
    samples = results.of("samples")
    for bar in bars:
        upper, lower = (rounds_of(samples, case, name) for case, name, _ in (bar.upper, bar.lower))
        if not set(upper) & set(lower):
            continue
        value = ratio(upper, bar.upper[2], lower, bar.lower[2])
        verdict = value.verdict(bar.limit) if bar.limit is not None else ""
        enough = resolvable(sum(map(len, upper.values())), bar.upper[2])
        if verdict and not enough:
            verdict = "inconclusive"  # too few samples: the quantile is the maximum
        results.add(
            "bar",
            what=bar.what,
            upper=bar.upper,
            lower=bar.lower,
            limit=bar.limit,
            verdict=verdict,
            **_interval(value),
        )
        limit = f"≤ {bar.limit:g}" if bar.limit is not None else ""
        rows.append((bar.what, str(value), limit, verdict))
    return Sheet(
        "Bars: ratio [95 % interval, bootstrap over rounds]", ("what", "ratio", "bar", "verdict"), rows
    )


def show(sheet: Sheet, console: Console) -> None:
    """Never cuts a number off: a terminal that is too narrow wraps the lines."""
    table = Table(title=sheet.title, title_justify="left")
    for head, *column in zip(sheet.heads, *sheet.rows, strict=True):
        words = any(len(word) > 2 and word.isalpha() for cell in column for word in cell.split())
        table.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in sheet.rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    needed = console.measure(table, options=console.options.update(width=WIDTH_MAX)).maximum
    console.print(table, width=max(console.width, needed), crop=False)


def write_markdown(
    path: Path, title: str, run: Record, sheets: Sequence[Sheet], notes: Sequence[str]
) -> None:
    machine = run["machine"]
    changed = " with uncommitted changes" if run["changed"] else ""
    lines = [
        f"# {title}",
        "",
        f"`{run['command']}` on {run['started'][:10]}, commit {run['commit'][:12] or 'unknown'}{changed}; "
        f"{machine['cores']} cores {machine['cpu']}, Linux {machine['kernel']}, "
        f"load average at the start {machine['load_average']:.1f}; samples in `{path.stem}.jsonl`.",
        "",
        *(f"- {note}" for note in notes),
    ]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", "", _line(sheet.heads), _line(["---"] * len(sheet.heads))]
        lines += [_line(row) for row in sheet.rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def terminal() -> Console:
    """Where progress and tables go; a file or pipe gets lines long enough for the widest table."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_FILES)


def finish(results: Results, title: str, sheets: Sequence[Sheet], notes: Sequence[str], out: Console) -> None:
    """Shows the tables and writes them beside the samples."""
    for sheet in sheets:
        show(sheet, out)
    markdown = results.path.with_suffix(".md")
    write_markdown(markdown, title, results.of("run")[0], sheets, notes)
    out.print(f"{results.path} and {markdown.name} written")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _summary_record(case: Record, contender: str, rounds: Rounds, samples: list[Record]) -> Record:
    turns = [turn for turn in samples if turn["case"] == case["name"] and turn["contender"] == contender]
    operations = sum(turn["operations"] for turn in turns)
    wire = {name: sum(turn["wire"][name] for turn in turns) for name in turns[0]["wire"]}
    counters = {name: sum(turn["counters"][name] for turn in turns) for name in turns[0]["counters"]}
    nbytes = DType.parse(case.get("dtype", "float32")).itemsize * case["elements"]
    return {
        "case": case["name"],
        "contender": contender,
        "ranks": case["ranks"],
        "elements": case["elements"],
        "dtype": case.get("dtype", "float32"),
        "op": case.get("op", "sum"),
        **summary(rounds),
        "bytes": nbytes,
        # All ranks' bytes for one operation, headers and barrier included, in units of the vector.
        "wire_share": wire["sent_bytes"] / operations / nbytes,
        "queue_drops": wire["queue_drops"],
        "lost": wire["lost"],
        "counters": counters,
        "idle_share": sum(turn["idle_share"] for turn in turns) / len(turns),
        "said": turns[-1]["said"],
    }


def against(rounds: Rounds, base: Rounds, q: float) -> Ratio | None:
    """The ratio of one quantile; None without common rounds, or where a side has too few samples."""
    counts = [sum(map(len, side.values())) for side in (rounds, base)]
    if not set(rounds) & set(base) or not all(resolvable(count, q) for count in counts):
        return None
    return ratio(rounds, q, base, q)


def as_ratio(interval: Record) -> Ratio | None:
    """A ratio read back from a record; None where the record has none."""
    if "ratio" not in interval:
        return None
    low, high = (math.nan if interval[end] is None else interval[end] for end in ("low", "high"))
    return Ratio(interval["ratio"], low, high, interval["ratio_rounds"])


def _summary_row(record: Record) -> tuple[str, ...]:
    def ms(name: str) -> str:
        return "—" if record[name] is None else f"{record[name] / 1e6:.3g}"

    said = f" ({record['said']})" if record["said"] and record["said"] not in record["contender"] else ""
    return (
        record["case"],
        record["contender"] + said,
        str(record["operations"]),
        *(ms(name) for name in ("p50_ns", "p99_ns", "p99_9_ns", "max_ns")),
        f"{record['bytes'] / record['p50_ns'] * 1e3:.0f}",
        f"{record['wire_share']:.2f} S",
        str(record["queue_drops"]),
        str(record["counters"].get("resent_packets", "")),
        f"{record['idle_share']:.0%}",
        str(as_ratio(record) or ""),
    )


def _interval(value: Ratio | None) -> Record:
    if value is None:
        return {}
    bounds = (None, None) if value.rounds == 1 else (value.low, value.high)
    return {"ratio": value.value, "low": bounds[0], "high": bounds[1], "ratio_rounds": value.rounds}
