"""The demo, in small: a real training on Gloo and on tailcut, and the report it ends in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailcut.bench.results import read

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
DEMO = Path(__file__).parents[2] / "examples/demo.py"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(DEMO), *argv], capture_output=True, text=True, timeout=110)


@pytest.mark.timeout(120)  # torch is imported four times
def test_both_trainings_learn_the_same_and_a_report_is_written(tmp_path: Path) -> None:
    path = tmp_path / "demo.jsonl"
    done = run("--network", "loopback", "--ranks", "2", "--steps", "4", "--output", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    records = read(path)
    gloo, own = (record for record in records if record["kind"] == "training")
    assert (gloo["contender"], own["contender"]) == ("gloo", "tailcut")
    assert len(own["loss"]) == 4
    # Two ranks: a sum of two is the same in any order, so are all bits, and so are the losses.
    assert own["loss"] == gloo["loss"]
    assert own["loss"][-1] < own["loss"][0] < 6.5  # ln 256 = 5.5: it knew nothing, and learns
    samples = [record for record in records if record["kind"] == "samples"]
    for step, reducing in (samples[0:2], samples[2:4]):
        assert len(step["durations_ns"]) == len(reducing["durations_ns"]) == 4
        assert all(
            0 < part < whole
            for part, whole in zip(reducing["durations_ns"], step["durations_ns"], strict=True)
        )
        assert [len(rank) for rank in reducing["lags_ns"]] == [4, 4]
        # 1.3 million float32 to and from one peer in each step.
        assert reducing["wire"]["sent_bytes"] > 4 * 2 * 4 * 1_300_000
    assert "parameters equal on all ranks" in done.stdout
    assert "│ yes" in done.stdout
    assert "The losses are equal" in done.stdout
    assert "loss, mean over the ranks" in path.with_suffix(".html").read_text()


def test_a_wrong_network_is_named() -> None:
    done = run("--network", "moon")
    assert done.returncode == 2
    assert "no such network: moon" in done.stderr
