"""The long campaign itself: it passes where all is right, and names the seed that fails or kills it."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fuzz.campaign
import pytest

from engine.random_scenarios import random_scenario
from engine.scenario import Scenario
from engine.virtual import Op

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)


def test_some_scenarios() -> None:
    done = command("fuzz.campaign", "--first", "7", "--count", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 scenarios from seed 7" in done.stdout


def test_a_failing_scenario_can_be_run_again() -> None:
    """What `reproduce:` prints does reproduce."""
    right = Scenario(2, (Op(10),))
    wrong = replace(right, limit_ns=0)
    assert command("fuzz.scenario", right.to_json()).returncode == 0
    done = command("fuzz.scenario", wrong.to_json())
    assert done.returncode == 1
    assert "not finished" in done.stdout


@pytest.mark.parametrize("seed", range(50))
def test_a_scenario_survives_json(seed: int) -> None:
    scenario = random_scenario(random.Random(seed))
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_a_dying_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho seed 41\necho seed 42\nkill -KILL $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(sys, "argv", ["campaign"])
    assert fuzz.campaign.main() == 1
    assert "--first 42: ends the process with -9" in capfd.readouterr().out
