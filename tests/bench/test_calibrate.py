"""Calibration finds the setting that shows the wanted tail, says what it measured, and writes it down."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailcut.bench.calibrate import Reading, search, verdict, with_background
from tailcut.bench.figures import Ratio
from tailcut.bench.results import read
from tailcut.cli import app
from tailcut.lab import missing_tools, scenario
from tailcut.lab.scenario import Background, parse


def test_the_search_finds_where_the_tail_is_the_wanted_one() -> None:
    asked: list[float] = []

    def tail_at(rate_mbit: float) -> float:
        asked.append(rate_mbit)
        return 100 / (100 - rate_mbit)  # what is left of 100 Mbit/s

    assert search(tail_at, 3.0, 5.0, 95.0, steps=8) == pytest.approx(66.7, abs=0.4)
    assert len(asked) == 8
    assert search(tail_at, 1.5, 5.0, 95.0, steps=8) == pytest.approx(33.3, abs=0.4)


def reading(value: float, low: float, high: float, invalid: int = 0) -> Reading:
    return Reading(50.0, 1, Ratio(value, low, high, 80), 1e8, value * 1e8, 1600, 100.0, 0.1, invalid)


def test_only_narrow_intervals_that_hold_the_target_count() -> None:
    good = reading(3.0, 2.8, 3.3)
    assert verdict([good, good], 3.0) == "calibrated"
    assert verdict([good, reading(3.0, 2.8, 3.3, invalid=1)], 3.0).startswith("inconclusive: the cores")
    assert verdict([good, reading(3.0, 2.0, 4.0)], 3.0).startswith("inconclusive: the interval")
    assert verdict([good, reading(3.6, 3.4, 3.8)], 3.0).startswith("missed")


def test_what_was_found_is_written_as_a_scenario() -> None:
    traffic = Background(16, (0, 1), 8_192_000, 400.0, 3600.0, 71.5)
    text = with_background(scenario.source("tail-3"), traffic)
    found = parse(text, "mine.toml")
    assert found.background == traffic
    assert found.network == scenario.load("tail-3").network
    assert text.count("[background]") == 1 and "By arithmetic" not in text
    between = 'summary = "x"\nhosts = 2\n[background]\nmembers = 2\n\n[[loss]]\npercent = 1\n'
    again = parse(with_background(between, traffic), "b.toml")
    assert again.background == traffic and again.losses[0].percent == 1


@pytest.mark.netns
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_a_short_calibration_measures_and_says_what_it_is_worth(tmp_path: Path) -> None:
    path, out, found = tmp_path / "t.toml", tmp_path / "c.jsonl", tmp_path / "found.toml"
    path.write_text(
        'summary = "x"\nhosts = 2\n[network]\nrate_mbit = 100\n'
        "[background]\nmembers = 2\non_ms = 100\noff_ms = 300\n"
    )
    words = ["lab", "calibrate", str(path), "2", "--steps", "1", "--rounds", "2", "-n", "4", "--size", "64K"]
    words += ["--repetitions", "1", "--write", str(found), "--output", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1), done.output
    steps = [record for record in read(out) if record["kind"] == "calibration"]
    assert [record["operations"] for record in steps] == [8, 32]
    assert steps[0]["rate_mbit"] == 50.0 and steps[1]["rate_mbit"] in (27.5, 72.5)
    assert steps[0]["seed"] != steps[1]["seed"]
    assert all(record["background_mbit"] > 1 for record in steps)
    result = scenario.load(str(found)).background
    assert result is not None and result.rate_mbit == steps[1]["rate_mbit"]
    assert "wanted 2" in " ".join(done.output.split())
    refused = CliRunner().invoke(app, ["lab", "calibrate", "clean", "2"])
    assert refused.exit_code == 2 and "needs a rate, and a background" in " ".join(refused.output.split())
