"""A run in turns, from teams to tables; a contender that fails costs itself only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from tailcut.bench.report import Bar, finish, judge, summarize
from tailcut.bench.results import Results, read
from tailcut.bench.sweep import Case, Contender, rounds_of, sweep
from tailcut.bench.team import Peer, Team

TOY = Path(__file__).with_name("toy.py")
CASES = [Case("small", 2, 10, iterations=4), Case("large", 2, 5000, iterations=2, warmup=1)]


def test_a_sweep_from_teams_to_tables(tmp_path: Path) -> None:
    prepared: list[str] = []
    console = Console(record=True, width=200)
    with Results(tmp_path / "run.jsonl", "test", {"why": "test"}) as results:
        with Team(Peer("good", TOY), 2) as good, Team(Peer("bad", TOY), 2) as bad:
            contenders = [
                Contender("good", good),
                Contender("half", good, "x", only=("small",)),
                Contender("liar", bad, "lie"),
            ]
            fine = sweep(
                contenders,
                CASES,
                rounds=3,
                results=results,
                console=console,
                prepare=lambda case: prepared.append(case.name),
            )
        assert not fine
        bar = Bar("half / good", ("small", "half", 0.5), ("small", "good", 0.5), 1.5)
        absent = Bar("liar / good", ("small", "liar", 0.5), ("small", "good", 0.5), 1.5)
        sheets = [summarize(results, "good"), judge(results, [bar, absent])]
        finish(results, "A test", sheets, ["a note"], console)

    records = read(tmp_path / "run.jsonl")
    assert sorted(prepared) == sorted([case.name for case in CASES] * 3)
    small = rounds_of(records, "small", "good")
    assert {number: len(samples) for number, samples in small.items()} == {0: 4, 1: 4, 2: 4}
    assert len(rounds_of(records, "large", "half")) == 0
    failures = [record for record in records if record["kind"] == "failure"]
    assert [failure["contender"] for failure in failures] == ["liar"]
    assert "wrong" in failures[0]["error"]
    # In every round both kinds of turns came before the next round's.
    order = [record["round"] for record in records if record["kind"] == "samples"]
    assert order == sorted(order)
    head = records[0]
    assert head["kind"] == "run"
    assert head["machine"]["cores"] >= 1
    assert head["settings"] == {"why": "test"}
    (verdict,) = [record for record in records if record["kind"] == "bar"]
    assert verdict["verdict"] == "inconclusive"  # three rounds
    text = (tmp_path / "run.md").read_text()
    assert "| small | good (toy ) | 12 |" in text
    assert "half / good" in text
    assert "liar" in console.export_text()


def test_an_interrupted_run_loses_no_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Results(path, "first", {}):
        pass
    with pytest.raises(KeyboardInterrupt), Results(path, "second", {}) as results:
        results.add("samples", value=1)
        raise KeyboardInterrupt
    assert read(path)[0]["benchmark"] == "first"
    partial = path.with_name("run.jsonl.partial").read_text().splitlines()
    assert json.loads(partial[-1]) == {"kind": "samples", "value": 1}
