"""The figures of a report, drawn by matplotlib: a function for each, None where there is nothing to draw."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tailcut.bench.digest import TAILCUT, Cell, Digest

WIDTH_IN = 10.2  # inches; the page scales the picture to its column
PANEL_IN = 2.9  # height of one panel
# Ours in blues, the reference in orange, the others in colours that colour-blind eyes can tell apart.
OURS = ("#0b6fb8", "#56b4e9", "#7a5bd0", "#1b3a6b", "#8fa8c9")
OTHERS = ("#e08214", "#2f9e77", "#b5477d", "#8c6d31", "#777777", "#c23b3b")
GRID, INK, SOFT = "#e4e7eb", "#1f2933", "#61707f"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": "#c3cad2",
    "axes.labelcolor": SOFT,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "text.parse_math": False,  # names come from files: a $ is a $
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and tested
}
SHORT = 8  # the largest over the smallest of a logarithmic axis that needs more than 1, 2 and 5
Draw = Callable[[Digest], Any]


def colours(digest: Digest) -> dict[str, str]:
    """The same colour for a library in every figure of a file."""
    ours = [name for name in digest.contenders if name.startswith(TAILCUT)]
    others = [name for name in digest.contenders if not name.startswith(TAILCUT)]
    found = {name: OURS[i % len(OURS)] for i, name in enumerate(ours)}
    return found | {name: OTHERS[i % len(OTHERS)] for i, name in enumerate(others)}


def _figure(panels: int, columns: int, height: float = PANEL_IN) -> tuple[Any, list[Any]]:
    """A figure with so many panels and a row on top for the legend."""
    rows = math.ceil(panels / columns)
    module = importlib.import_module("matplotlib.figure")
    figure = module.Figure(figsize=(WIDTH_IN, rows * height + 0.35), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]
    return figure, axes


def _legend(figure: Any, digest: Digest) -> None:
    lines = importlib.import_module("matplotlib.lines")
    handles = [
        lines.Line2D([], [], color=colour, linewidth=2.4, label=name)
        for name, colour in colours(digest).items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(6, len(handles)), fontsize=9)


def latencies(digest: Digest) -> Any:
    """The share of operations done within a time: a panel for each case, time on a logarithmic scale."""
    return _distributions(digest, lambda cell: cell.times_ns)


def transfers(digest: Digest) -> Any:
    """The same from the last rank's start on, where ranks were late on purpose."""
    return (
        _distributions(digest, lambda cell: cell.transfers_ns) if digest.scenario.get("stragglers") else None
    )


def _distributions(digest: Digest, times: Callable[[Cell], Any]) -> Any:
    if not any(times(cell).size for cell in digest.cells):
        return None
    figure, axes = _figure(len(digest.cases), 1 if len(digest.cases) == 1 else 2)
    for case, axis in zip(digest.cases, axes, strict=True):
        for cell in digest.of(case):
            found = times(cell)
            x = np.concatenate([found[:1], found]) / 1e6
            y = np.concatenate([[0], np.arange(1, found.size + 1) / found.size])
            colour = colours(digest)[cell.contender]
            axis.step(x, y * 100, where="post", color=colour, linewidth=1.7)
            axis.plot(x[-1], 100, "o", color=colour, markersize=3.2)
        if case in digest.limits_ns:
            axis.axvline(digest.limits_ns[case] / 1e6, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axis.set(title=case, xscale="log", ylim=(0, 103), xlabel="ms", ylabel="% of operations within")
        _plain(axis.xaxis)
    _legend(figure, digest)
    return figure


def ratios(digest: Digest) -> Any:
    """Median and p99 over the reference's, with their intervals."""
    compared = [cell for cell in digest.cells if cell.median_ratio or cell.tail_ratio]
    if not compared:
        return None
    figure, axes = _figure(2, 2, 0.9 + 0.27 * len(compared))
    for axis, name, q in zip(axes, ("median_ratio", "tail_ratio"), ("p50", "p99"), strict=True):
        drawn = 0
        for place, cell in enumerate(reversed(compared)):
            ratio = getattr(cell, name)
            if ratio is None:
                continue
            drawn += 1
            colour = colours(digest)[cell.contender]
            if not math.isnan(ratio.low):
                axis.plot([ratio.low, ratio.high], [place, place], color=colour, linewidth=3.4, alpha=0.45)
            axis.plot(ratio.value, place, "o", color=colour, markersize=5.5)
        axis.set(title=f"{q} over {digest.reference}'s", xscale="log", ylim=(-0.6, len(compared) - 0.4))
        if drawn:
            axis.axvline(1, color=INK, linewidth=1)
            _plain(axis.xaxis)
        else:
            axis.text(0.5, 0.5, "too few operations", ha="center", transform=axis.transAxes, color=SOFT)
            axis.set_xticks([])
            axis.set_xticks([], minor=True)
    labels = [f"{cell.case} · {cell.contender}" for cell in reversed(compared)]
    axes[0].set_yticks(range(len(compared)), labels)
    axes[1].set_yticks(range(len(compared)), [""] * len(compared))
    figure.supxlabel("left of 1: shorter times than the reference", fontsize=9, color=SOFT)
    return figure


def wire(digest: Digest) -> Any:
    """Bytes on the wire for one operation, and the fewest there can be."""
    return _bars(
        digest,
        lambda cell: cell.wire_share,
        lambda cell: cell.wire_limit,
        "vectors on the wire for one operation, all ranks; | is the limit 2 (n - 1), headers not counted",
    )


def loss(digest: Digest) -> Any:
    """Packets lost on purpose, dropped by queues, and sent again."""
    if not any(cell.lost or cell.queue_drops or cell.resent for cell in digest.cells):
        return None
    figure, axes = _figure(3, 3, 0.9 + 0.27 * len(digest.cells))
    cells = digest.cells[::-1]
    kinds = (("lost by the lab", "lost"), ("dropped by queues", "queue_drops"), ("sent again", "resent"))
    for axis, (title, name) in zip(axes, kinds, strict=True):
        values = [getattr(cell, name) for cell in cells]
        shown = [value or 0 for value in values]
        axis.barh(
            range(len(cells)), shown, color=[colours(digest)[cell.contender] for cell in cells], height=0.62
        )
        for place, value in enumerate(values):
            _label(axis, shown[place], place, "—" if value is None else str(value))
        axis.set(title=title, ylim=(-0.6, len(cells) - 0.4))
        axis.set_xlim(0, max(shown) * 1.25 or 1)
        if not any(shown):
            axis.set_xticks([])
    axes[0].set_yticks(range(len(cells)), [f"{cell.case} · {cell.contender}" for cell in cells])
    for axis in axes[1:]:
        axis.set_yticks(range(len(cells)), [""] * len(cells))
    figure.supxlabel("packets in the whole run; —: the library does not say", fontsize=9, color=SOFT)
    return figure


def lags(digest: Digest) -> Any:
    """How late each rank entered operations: half of them, and 98 of 100, lie within the bars."""
    cases = [case for case in digest.cases if any(cell.lags_ns for cell in digest.of(case))]
    if not cases:
        return None
    figure, axes = _figure(len(cases), 1 if len(cases) == 1 else 2)
    for case, axis in zip(cases, axes, strict=True):
        cells = [cell for cell in digest.of(case) if cell.lags_ns]
        step = 0.8 / len(cells)
        for place, cell in enumerate(cells):
            colour = colours(digest)[cell.contender]
            for rank, values in enumerate(cell.lags_ns):
                x = rank + (place - (len(cells) - 1) / 2) * step
                low, quarter, middle, upper, high = np.quantile(
                    np.asarray(values) / 1e6, [0.01, 0.25, 0.5, 0.75, 0.99]
                )
                axis.plot([x, x], [low, high], color=colour, linewidth=1.2)
                axis.plot(
                    [x, x], [quarter, upper], color=colour, linewidth=4.5, alpha=0.5, solid_capstyle="butt"
                )
                axis.plot(x, middle, "o", color=colour, markersize=3.6)
        axis.set(title=case, xlabel="rank", ylabel="ms behind the first rank", ylim=(0, None))
        axis.set_xticks(range(max(len(cell.lags_ns) for cell in cells)))
    _legend(figure, digest)
    return figure


def losses(digest: Digest) -> Any:
    """The loss of each training, step by step."""
    if not digest.trainings:
        return None
    figure, (axis,) = _figure(1, 1)
    for place, training in enumerate(digest.trainings):
        steps = range(1, len(training["loss"]) + 1)
        colour = colours(digest).get(training["contender"], INK)
        # The later ones are dashed: equal curves would hide each other.
        style = "-" if place == 0 else (0, (4, 3))
        axis.plot(steps, training["loss"], color=colour, linewidth=2.2, linestyle=style)
    axis.set(title="loss, mean over the ranks", xlabel="step")
    _legend(figure, digest)
    return figure


FIGURES: dict[str, Draw] = {
    "latencies": latencies,
    "ratios": ratios,
    "transfers": transfers,
    "losses": losses,
    "wire": wire,
    "loss": loss,
    "lags": lags,
}


def _bars(digest: Digest, value: Callable[[Cell], float], limit: Callable[[Cell], float], label: str) -> Any:
    if not digest.cells:
        return None
    figure, (axis,) = _figure(1, 1, 0.9 + 0.27 * len(digest.cells))
    cells = digest.cells[::-1]
    for place, cell in enumerate(cells):
        axis.barh(place, value(cell), color=colours(digest)[cell.contender], height=0.62, alpha=0.85)
        axis.plot([limit(cell)] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=1.6)
        _label(axis, max(value(cell), limit(cell)), place, f"{value(cell):.2f}")
    axis.set_yticks(range(len(cells)), [f"{cell.case} · {cell.contender}" for cell in cells])
    axis.set(xlabel=label, ylim=(-0.6, len(cells) - 0.4))
    axis.margins(x=0.08)
    return figure


def _label(axis: Any, x: float, place: int, text: str) -> None:
    """A number a little to the right of a bar's end."""
    offset = {"xytext": (4, 0), "textcoords": "offset points"}
    axis.annotate(text, (x, place), va="center", fontsize=8, color=SOFT, **offset)


def _plain(axis: Any) -> None:
    """Numbers instead of powers of ten on a logarithmic axis, and enough of them on a short one."""
    ticker = importlib.import_module("matplotlib.ticker")
    low, high = axis.get_view_interval()
    wide = high / low > SHORT
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=12) if wide else ticker.MaxNLocator(6))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
