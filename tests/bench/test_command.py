"""`tailcut bench` as its users call it: real ranks, real values, files, and words when something lacks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailcut.bench import baselines
from tailcut.bench.results import read
from tailcut.cli import app

SMALL = ["-b", "4K", "-e", "64K", "-f", "16", "-n", "4", "-w", "1", "-g", "2", "--rounds", "2"]


def run(*argv: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(argv))
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_the_program_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tailcut.cli", "--help"], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "tailcut bench" in done.stdout
    assert run("--version").startswith("tailcut 0.")
    text = run("bench", "--help")
    for flag in ("-b, --begin", "-e, --end", "-f, --factor", "-n, --iters", "-w, --warmup", "Examples:"):
        assert flag in text


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["-b", "3Q"], "'3Q' is no size"),
        (["-b", "2M", "-e", "1M"], "above their end"),
        (["-d", "int4"], "no such dtype: int4"),
        (["-d", "int32", "-o", "avg"], "a mean of int32 is not exact"),
        (["--schedule", "auto,star"], "no such schedule: star"),
        (["-g", "0"], "ranks are 1 to 64"),
        (["-n", "0"], "at least one operation"),
    ],
)
def test_a_wrong_flag_is_named_before_anything_starts(flags: list[str], complaint: str) -> None:
    assert complaint in run("bench", *flags, code=2)


def test_an_unknown_peer_is_named() -> None:
    assert "no such peer: nccl; there are gloo" in str(
        CliRunner().invoke(app, ["bench", "--against", "nccl"]).exception
    ) + run("bench", "--against", "nccl", code=1)


def test_alone_in_another_dtype_and_with_two_schedules(tmp_path: Path) -> None:
    path = tmp_path / "alone.jsonl"
    text = run(
        "bench", *SMALL, "--against", "none", "--schedule", "auto,ring", "-d", "float64", "-o", "max",
        "--output", str(path),
    )  # fmt: skip
    records = read(path)
    assert "4096 │ 512 │ float64 │ max │ tailcut" in text
    assert "tailcut-ring / tailcut" in text
    assert "inconclusive" in text  # two rounds
    head = records[0]
    assert head["machine"]["kernel"]
    assert head["versions"]["tailcut"]
    assert head["settings"]["dtype"] == "float64"
    samples = [record for record in records if record["kind"] == "samples"]
    assert len(samples) == 2 * 2 * 2  # sizes, schedules, rounds
    assert all(len(turn["durations_ns"]) == 4 for turn in samples)
    assert all(len(turn["lags_ns"]) == 2 for turn in samples)
    assert {turn["said"] for turn in samples if turn["contender"] == "tailcut-ring"} == {"ring"}
    assert path.with_suffix(".md").read_text().startswith("# tailcut bench: 2 ranks on this machine")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_beside_gloo(tmp_path: Path) -> None:
    text = run("bench", *SMALL, "-d", "bfloat16", "-o", "avg", "--output", str(tmp_path / "gloo.jsonl"))
    assert "bfloat16 │ avg │ gloo" in text
    assert "tailcut / gloo" in text


def test_without_torch_it_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "missing", lambda names: dict.fromkeys(names, "pip install it"))
    text = run("bench", *SMALL[:-2], "--rounds", "1", "--output", str(tmp_path / "x.jsonl"))
    assert "gloo comes with PyTorch, which is not installed: measuring without it" in text
    assert "pip install it" in text
    assert "4096 │ 1024 │ float32 │ sum │ tailcut" in text


def test_what_the_figures_need_is_missed_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = run("bench", "-d", "bfloat16", "--against", "none", code=2)
    assert "not installed: scipy, ml_dtypes" in text
    assert "pip install scipy ml_dtypes" in text


def test_an_mpi_has_no_half_floats() -> None:
    assert "float16" not in baselines.mpich().dtypes
    assert baselines.gloo().dtypes == ()
