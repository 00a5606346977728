"""The flags and columns of nccl-tests, which people know: sizes, bandwidths, and behind them the tail."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from tailcut.bench.report import Sheet, as_ratio
from tailcut.bench.results import Record

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
HEADS = (
    "size B",
    "count",
    "type",
    "redop",
    "library",
    "time us",
    "algbw GB/s",
    "busbw GB/s",
    "#wrong",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "max us",
)


def parse_size(text: str) -> int:
    """Bytes: `65536`, `64K`, `1M`, `2G`; a trailing B, iB or small letters do no harm."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)I?B?", text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is no size; write bytes, or 64K, 1M, 2G")
    return round(float(match[1]) * UNITS[match[2]])


def sizes(begin: int, end: int, factor: float, itemsize: int) -> list[int]:
    """From begin to end by a factor, each a whole number of elements."""
    if factor <= 1:
        raise ValueError(f"the factor between sizes must be above 1, not {factor:g}")
    if begin > end:
        raise ValueError(f"the sizes begin at {begin} bytes, above their end at {end}")
    found: list[int] = []
    size = float(begin)
    while round(size) <= end:
        whole = max(itemsize, round(size) // itemsize * itemsize)
        if whole not in found:
            found.append(whole)
        size *= factor
    return found


def size_text(nbytes: int) -> str:
    for unit in ("G", "M", "K"):
        if nbytes >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:.4g} {unit}iB"
    return f"{nbytes} B"


def bandwidths(nbytes: int, time_ns: float, ranks: int) -> tuple[float, float]:
    """algbw = S / t and busbw = algbw * 2 (n - 1) / n, both in GB/s."""
    algbw = nbytes / time_ns
    return algbw, algbw * 2 * (ranks - 1) / ranks


def table(summaries: Iterable[Record], failures: Sequence[Record], cases: Sequence[Record]) -> Sheet:
    """A row for every library and size; one that failed has a row that says so, with its wrong elements."""
    rows = [_row(record) for record in summaries]
    by_name = {case["name"]: case for case in cases}
    for failure in failures:
        case = by_name[failure["case"]]
        head = (str(case["nbytes"]), str(case["elements"]), case["dtype"], case["op"])
        wrong = str(failure["wrong_elements"])
        rows.append((*head, failure["contender"], "failed", "", "", wrong, "", "", "", ""))
    rows.sort(key=lambda row: int(row[0]))
    return Sheet("AllReduce: the slowest rank's time of each operation", HEADS, rows)


def _row(record: Record) -> tuple[str, ...]:
    algbw, busbw = bandwidths(record["bytes"], record["mean_ns"], record["ranks"])
    said = f" ({record['said']})" if record["said"] and record["said"] not in record["contender"] else ""
    return (
        str(record["bytes"]),
        str(record["elements"]),
        record["dtype"],
        record["op"],
        record["contender"] + said,
        _us(record["mean_ns"]),
        f"{algbw:.3g}",
        f"{busbw:.3g}",
        "0",
        *(_us(record[name]) for name in ("p50_ns", "p99_ns", "p99_9_ns", "max_ns")),
    )


def _us(nanoseconds: int | None) -> str:
    """Four digits at most; — where there are too few samples for the quantile."""
    if nanoseconds is None:
        return "—"
    microseconds = nanoseconds / 1e3
    return f"{microseconds:.0f}" if microseconds >= 1000 else f"{microseconds:.4g}"


def ratios(summaries: Iterable[Record], reference: str, doubtful: Collection[tuple[str, str]] = ()) -> Sheet:
    """How each library compares with the reference, and whether that is more than chance.

    doubtful: (case, library) that were not measured under conditions that decide anything.
    """
    rows = []
    for record in summaries:
        if record["contender"] == reference:
            continue
        for quantile, interval in (("p50", record), ("p99", record["p99_ratio"])):
            value = as_ratio(interval)
            if value is not None:
                who = f"{record['contender']} / {reference}"
                word = "invalid" if (record["case"], record["contender"]) in doubtful else value.word()
                rows.append((size_text(record["bytes"]), who, quantile, str(value), word))
    heads = ("size", "of", "quantile", "ratio of times", "verdict")
    return Sheet(f"Beside {reference}: ratio [95 % interval, bootstrap over rounds]", heads, rows)
