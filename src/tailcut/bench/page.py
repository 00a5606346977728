"""The report: one HTML page that needs nothing else, and the same figures as PNGs."""

from __future__ import annotations

import importlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailcut.bench import charts
from tailcut.bench.digest import QUANTILES, Cell, Digest
from tailcut.bench.figures import Ratio
from tailcut.bench.results import Record, circumstances

TEMPLATE = Path(__file__).with_name("page.html")
PNG_DPI = 160
OTHERS_MAX = 0.15  # of all cores: what other programs may take before the page says so
# What stands above each figure.
CAPTIONS = {
    "latencies": (
        "How long an operation takes",
        "The share of all operations that were done within a time; the slowest rank counts. A steep line is "
        "a steady library, one that bends to the right at the top has a tail. The dot is the slowest of all. "
        "A dashed line is what the bandwidth allows.",
    ),
    "ratios": (
        "Beside the reference",
        "The dot is the ratio of the two times, the bar its 95 % interval (bootstrap over rounds). Where the "
        "bar crosses 1 the run does not decide. No bar: there was only one round.",
    ),
    "transfers": (
        "Without the waiting for late ranks",
        "From the moment the last rank began: what the library can do something about once all are there.",
    ),
    "losses": ("The loss of the training", "Equal curves lie on each other; the second is dashed."),
    "wire": (
        "Bytes on the wire",
        "Counted by the network, with headers, barriers and everything sent again. Nothing on the wire would "
        "mean shared memory. On loopback everyone's bytes are counted.",
    ),
    "loss": ("Packets lost and sent again", "Loopback loses nothing unless a socket's buffer overflows."),
    "lags": (
        "Who was late to start",
        "How long after the first rank each rank began; the thick bar holds half of the operations, the thin "
        "one 98 of 100.",
    ),
}


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    title: str
    caption: str
    svg: str


class Missing(RuntimeError):
    """A library the report is made with is not installed; the text says how to get it."""


def write(digests: Sequence[Digest], output: Path, *, png: Path | None = None) -> list[Path]:
    """Writes the page, and the figures as PNGs into a folder if there is one; returns what was written."""
    jinja = _need("jinja2")
    _need("matplotlib")
    written = []
    sections = []
    for number, digest in enumerate(digests):
        pictures = []
        for name, figure in _figures(digest):
            title, caption = CAPTIONS[name]
            pictures.append(Picture(name, title, caption, _svg(figure, f"{number}-{name}")))
            if png is not None:
                png.mkdir(parents=True, exist_ok=True)
                path = png / f"{digest.path.stem}-{name}.png"
                figure.savefig(path, dpi=PNG_DPI)
                written.append(path)
        sections.append(_section(digest, pictures))
    environment = jinja.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja.StrictUndefined
    )
    environment.filters["ms"] = _ms
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    data = json.dumps([_data(digest) for digest in digests]).replace("<", "\\u003c")
    page = template.render(sections=sections, made=circumstances(), data=data, quantiles=QUANTILES)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")
    return [output, *written]


def _figures(digest: Digest) -> Iterator[tuple[str, Any]]:
    matplotlib = _need("matplotlib")
    for name, draw in charts.FIGURES.items():
        with matplotlib.rc_context(charts.STYLE):
            figure = draw(digest)
            if figure is not None:
                yield name, figure


def _svg(figure: Any, salt: str) -> str:
    """The figure as an element of the page: no date, no identifier that another figure has too."""
    matplotlib = _need("matplotlib")
    buffer = io.StringIO()
    with matplotlib.rc_context({**charts.STYLE, "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # matplotlib numbers its groups from 1 in every figure.
    for kind in ("figure", "axes", "patch", "line2d", "text", "matplotlib.axis", "xtick", "ytick", "legend"):
        text = text.replace(f'id="{kind}_', f'id="{salt}-{kind}_')
    return text


def _section(digest: Digest, pictures: list[Picture]) -> Record:
    run = digest.run
    idle = [cell.idle_share for cell in digest.cells]
    warnings = []
    if run.get("changed"):
        warnings.append("The code had uncommitted changes.")
    if idle and min(idle) < 0.1:
        warnings.append(
            "The processors were busy all the time in some cases: they, not the network, were the limit."
        )
    if max((training.get("others_share", 0) for training in digest.trainings), default=0) > OTHERS_MAX:
        warnings.append("Other programs took much of the processors meanwhile.")
    invalid = [seen for seen in digest.surroundings if seen["invalid_turns"]]
    if invalid:
        turns = f"{sum(seen['invalid_turns'] for seen in invalid)} of {_turns(digest)} turns"
        warnings.append(f"{turns} say nothing about the network: {invalid[0]['invalid_because']}.")
    warnings += [
        f"{seen['contender']} in {seen['case']} is void: {seen['void']}."
        for seen in digest.surroundings
        if seen["void"]
    ]
    if run["settings"].get("quick"):
        warnings.append("A quick try: no evidence.")
    groups = [(case, digest.of(case)) for case in digest.cases]
    return {"digest": digest, "run": run, "pictures": pictures, "warnings": warnings, "groups": groups}


def _turns(digest: Digest) -> int:
    return sum(int(seen["turns"]) for seen in digest.surroundings)


def _data(digest: Digest) -> Record:
    """The figures of the page for programs, with all their digits."""
    return {
        "file": digest.path.name,
        "command": digest.run["command"],
        "reference": digest.reference,
        "cells": [_cell_data(cell) for cell in digest.cells],
    }


def _cell_data(cell: Cell) -> Record:
    return {
        "case": cell.case,
        "contender": cell.contender,
        "operations": int(cell.times_ns.size),
        "max_ns": cell.max_ns,
        "quantiles_ns": {f"{q:g}": value for q, value in cell.quantiles_ns.items()},
        "median_ratio": _ratio_data(cell.median_ratio),
        "tail_ratio": _ratio_data(cell.tail_ratio),
        "wire_share": cell.wire_share,
        "wire_limit": cell.wire_limit,
    }


def _ratio_data(ratio: Ratio | None) -> list[float | None] | None:
    if ratio is None:
        return None
    return [ratio.value, *(None if math.isnan(end) else end for end in (ratio.low, ratio.high))]


def _ms(nanoseconds: float | None) -> str:
    return "—" if nanoseconds is None else f"{nanoseconds / 1e6:.4g}"


def _need(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(
            f"the report needs {name}, which is not installed: pip install 'tailcut[bench]'"
        ) from error
