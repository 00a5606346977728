"""A page of results says what the file says: in its data, table and figures, and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tailcut.bench import page
from tailcut.bench.digest import digest, newest
from tailcut.cli import app

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ODD = "<script>alert('x')</script> & $5$"  # a name from a file is text, whatever it says
SIZES = {"64 KiB": 16384, ODD: 250}


def times(contender: str, number: int) -> list[int]:
    """Nanoseconds: gloo takes 2 to 2.99 ms, tailcut half of it."""
    return [(1_000_000 if contender == "tailcut" else 2_000_000) + 10_000 * i + number for i in range(100)]


def records() -> list[dict[str, Any]]:
    machine = {"cpu": "a cpu", "cores": 2, "memory_bytes": 1 << 34, "kernel": "6.1", "load_average": 0.5}
    run = {
        "kind": "run",
        "benchmark": "bench",
        "started": "2026-11-19T06:00:00+00:00",
        "command": "tailcut bench -b 64K",
        "commit": "0123456789abcdef",
        "changed": [],
        "machine": {**machine, "tcp_congestion": "cubic", "rmem_max": 1},
        "versions": {"python": "3.11"},
        "settings": {"rounds": 6, "against": ["gloo"]},
    }
    found: list[dict[str, Any]] = [run]
    for name in ("gloo", "tailcut"):
        found.append({"kind": "contender", "name": name, "variant": "", "versions": {"torch": "2.13.0"}})
    for case, elements in SIZES.items():
        found.append({"kind": "case", "name": case, "ranks": 4, "elements": elements, "iterations": 100})
        for name in ("gloo", "tailcut"):
            for number in range(6):
                found.append(samples(case, name, number, elements))
    found.append({"kind": "failure", "case": ODD, "contender": "mpich", "round": 0, "error": "rank 2 <died>"})
    found += seen_by_the_lab()
    found.append({"kind": "training", "contender": "gloo", "loss": [5.5, 4.0, 3.25], "seconds": 9.0})
    return found


def seen_by_the_lab() -> list[dict[str, Any]]:
    quiet = {
        "busy_share": 0.4,
        "invalid_turns": 0,
        "invalid_because": "",
        "background_share": 1.0,
        "void": "",
    }
    greedy = {"busy_share": 0.8, "invalid_turns": 2, "invalid_because": "too busy", "background_share": 0.5}
    common = {"kind": "surroundings", "case": "64 KiB", "turns": 6, "queue_drops": 1, "lost": 2, "faults": 0}
    scene = {"name": "straggler", "summary": "one late rank", "hosts": 4, "seed": 7, "stragglers": {"ms": 5}}
    return [
        {"kind": "scenario", **scene},
        {**common, "contender": "gloo", "background_mbit": 62.5, **quiet},
        {**common, "contender": "tailcut", "background_mbit": 31.25, **greedy, "void": "it starved the rest"},
        {"kind": "headroom", "case": "64 KiB", "limit_ns": 750_000},
        {"kind": "absent", "contender": "intel-mpi", "error": "no UDP"},
    ]


def samples(case: str, name: str, number: int, elements: int) -> dict[str, Any]:
    wire = {"sent_bytes": 110 * elements * 4 * 6, "queue_drops": 3, "lost": 7}
    return {
        "kind": "samples",
        "case": case,
        "contender": name,
        "round": number,
        "durations_ns": times(name, number),
        "transfers_ns": [time - 500_000 for time in times(name, number)],
        "lags_ns": [[0] * 100, [5_000_000] * 100, [0] * 100, [0] * 100],
        "operations": 110,
        "wire": wire,
        "counters": {"resent_packets": 11} if name == "tailcut" else {},
        "said": "ring" if name == "tailcut" else "",
        "idle_share": 0.5,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("report")
    path = folder / "small.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records()))
    written = page.write([digest(path)], folder / "small.html", png=folder / "png")
    assert written[0] == folder / "small.html"
    names = {png.stem.removeprefix("small-") for png in written[1:]}
    assert names == {"latencies", "ratios", "transfers", "losses", "wire", "loss", "lags"}
    assert all(png.read_bytes().startswith(b"\x89PNG") for png in written[1:])
    return written[0], written[0].read_text(encoding="utf-8")


def test_the_data_in_the_page_are_those_of_the_file(made: tuple[Path, str]) -> None:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', made[1], re.DOTALL)
    assert match is not None
    (data,) = json.loads(match[1])
    assert data["reference"] == "gloo"
    assert [(cell["case"], cell["contender"]) for cell in data["cells"]] == [
        (case, name) for case in SIZES for name in ("gloo", "tailcut")
    ]
    for cell in data["cells"]:
        every = np.concatenate([times(cell["contender"], number) for number in range(6)])
        assert cell["operations"] == 600
        assert cell["max_ns"] == every.max()
        assert cell["quantiles_ns"]["0.5"] == np.median(every)
        assert cell["quantiles_ns"]["0.99"] == np.quantile(every, 0.99, method="higher")
        assert cell["quantiles_ns"]["0.999"] is None  # 600 operations do not tell it from the maximum
        assert cell["wire_share"] == pytest.approx(6)
        assert cell["wire_limit"] == 6
    ratio, low, high = data["cells"][1]["median_ratio"]
    assert ratio == pytest.approx(1_495_002.5 / 2_495_002.5)
    assert low <= ratio <= high < 1
    assert data["cells"][0]["median_ratio"] is None  # gloo is the reference


def test_the_table_and_the_figures_say_the_same(made: tuple[Path, str]) -> None:
    text = made[1]
    assert "<td>2.495</td>" in text  # gloo's median in ms
    assert "<td>1.495</td>" in text
    assert '<b class="invalid">0.599</b>' in text  # in 64 KiB: tailcut starved the background
    assert '<b class="faster">0.599</b>' in text  # in the other case
    assert "tailcut bench -b 64K" in text
    assert "0123456789ab" in text
    assert "rank 2 &lt;died&gt;" in text
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 7
    assert "64 KiB" in figures[0]
    assert "6.00" in figures[4]  # vectors on the wire
    assert ">42<" in figures[5]  # lost: 7 in each of 6 turns
    assert ">66<" in figures[5]  # resent: 11 in each
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))


def test_what_the_lab_saw_stands_in_the_page(made: tuple[Path, str]) -> None:
    text = made[1]
    assert "straggler, 4 hosts, seed 7: one late rank" in text
    assert "2 of 12 turns say nothing about the network: too busy." in text
    assert "tailcut in 64 KiB is void: it starved the rest." in text
    assert "<td>31.2</td>" in text
    assert "at the start, intel-mpi failed: no UDP" in text


def test_names_from_a_file_stay_text_and_nothing_is_fetched(made: tuple[Path, str]) -> None:
    text = made[1]
    assert "<script>alert" not in text
    assert "$5$" in text
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts == ['<script type="application/json" id="data">']
    assert not re.search(r'(?:src|href)="(?!#|data:)', text.replace('xlink:href="#', ""))


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_it_without_complaint(made: tuple[Path, str], tmp_path: Path) -> None:
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --enable-logging=stderr"
    picture = tmp_path / "page.png"
    where = [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", "--window-size=1120,3000"]
    done = subprocess.run(
        [str(CHROMIUM), *flags.split(), *where, made[0].as_uri()], capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 50_000  # a blank page of this size has a tenth


def test_the_command_takes_the_newest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    done = runner.invoke(app, ["report"])
    assert done.exit_code == 2
    assert "run tailcut bench first" in " ".join(done.output.split())
    folder = tmp_path / "tailcut-results"
    folder.mkdir()
    path = folder / "bench-1.jsonl"
    path.write_text(json.dumps(records()[0]) + "\n")  # a run that measured nothing
    assert newest(folder) == path
    done = runner.invoke(app, ["report"])
    assert done.exit_code == 0, done.output
    assert "holds no times of operations" in path.with_suffix(".html").read_text()
    path.write_text("no json\n")
    done = runner.invoke(app, ["report", str(path)])
    assert done.exit_code == 1
    assert "is no file of results" in " ".join(done.output.split())
