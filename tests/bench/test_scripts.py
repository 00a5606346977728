"""The scripts start, and say what is wrong before anything is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=FOLDER.parent, capture_output=True, text=True, timeout=50
    )


@pytest.mark.parametrize("script", ["loopback.py", "shaped.py", "fairness.py", "stopwatch.py"])
def test_every_script_explains_itself(script: str) -> None:
    done = run(str(FOLDER / script), "--help")
    assert done.returncode == 0, done.stderr
    for option in ("--output", "--rounds", "--quick"):
        assert option in done.stdout


@pytest.mark.parametrize("script", ["loopback.py", "shaped.py"])
def test_an_unknown_peer_is_named_and_no_result_is_touched(script: str, tmp_path: Path) -> None:
    done = run(str(FOLDER / script), "--peers", "gloo,nccl", "--output", str(tmp_path / "x.jsonl"))
    assert done.returncode != 0
    assert "no such peer: nccl; there are gloo, " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_scenarios_explains_itself_and_names_an_unknown_peer(tmp_path: Path) -> None:
    script = str(FOLDER / "scenarios.py")
    assert "--only" in run(script, "--help").stdout
    done = run(script, "--only", "clean", "--peers", "nccl", "--folder", str(tmp_path))
    assert done.returncode != 0
    assert "no such peer: nccl; there are gloo, " in done.stderr
    assert list(tmp_path.iterdir()) == []
