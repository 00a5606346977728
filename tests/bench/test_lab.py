"""`tailcut bench --lab`: ranks on hosts of the lab, late ones told apart, and what the lab saw meanwhile."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tailcut.bench import baselines, surroundings
from tailcut.bench.results import Results, read
from tailcut.bench.team import Team
from tailcut.cli import app
from tailcut.lab import Hosts, missing_tools
from tailcut.lab.scenario import Background, Network, Port, Scenario

needs_lab = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]
WIRE = (1500 + 14) / (1500 - 52)


def scene(**fields: Any) -> Scenario:
    return Scenario("t", "A test.", 4, Network(rate_mbit=100), **fields)


def test_the_limit_counts_headers_slow_ports_and_what_the_background_takes() -> None:
    plain = 2 * 3 / 4 * 1_000_000 * WIRE * 8 / 100e6 * 1e9  # 2 (n - 1) / n of the bytes at 100 Mbit/s
    assert surroundings.limit_ns(scene(), 1_000_000, 4, 0.0, 0.0) == pytest.approx(plain)
    slow = scene(ports=(Port(3, in_mbit=25),))
    assert surroundings.limit_ns(slow, 1_000_000, 4, 0.0, 0.0) == pytest.approx(4 * plain)
    shared = scene(background=Background(4))
    # 80 Mbit/s of both directions together, half of the time: 20 Mbit/s of each cable, and their headers.
    limit = surroundings.limit_ns(shared, 1_000_000, 4, 80.0, 0.5)
    assert limit == pytest.approx(plain * 100 / (100 - 20 * WIRE))
    free = Scenario("t", "A test.", 4, Network(rate_mbit=None))
    assert surroundings.limit_ns(free, 1_000_000, 4, 0.0, 0.0) == 0


def samples(contender: str, mbit: float, busy: float, ms: int) -> dict[str, Any]:
    cell = {
        "seconds": 2.0,
        "busy_share": busy,
        "background_mbit": mbit,
        "background_on_share": 1.0,
        "queue_drops": 3,
        "drops": {"lost": 2, "cut": 0},
        "faults": (),
        "verdict": "valid" if busy < 0.7 else "too busy",
    }
    times = {"durations_ns": [ms * 1_000_000] * 2, "transfers_ns": [ms * 500_000] * 2}
    return {"case": "c", "contender": contender, "round": 0, "lab": cell, **times}


def test_who_starves_the_background_is_void_and_busy_turns_are_invalid(tmp_path: Path) -> None:
    with Results(tmp_path / "a.jsonl", "bench", {}) as results:
        results.add("case", name="c", ranks=4, elements=250_000, dtype="float32")
        for name, mbit, busy in (("gloo", 50.0, 0.5), ("fair", 46.0, 0.8), ("greedy", 44.0, 0.5)):
            results.add("contender", name=name)
            results.add("samples", **samples(name, mbit, busy, 300))
        seen, limits = surroundings.judge(results, scene(background=Background(4)), "gloo")
        records = {record["contender"]: record for record in results.of("surroundings")}
        (headroom,) = results.of("headroom")
    assert [bool(records[name]["void"]) for name in ("gloo", "fair", "greedy")] == [False, False, True]
    assert [records[name]["invalid_turns"] for name in ("gloo", "fair", "greedy")] == [0, 1, 0]
    assert any("VOID" in cell for row in seen.rows for cell in row)
    left = 100 - 25 * WIRE
    assert headroom["headroom"] == pytest.approx(0.3 / (1.5 * 1e6 * WIRE * 8 / (left * 1e6)), rel=1e-6)
    assert headroom["transfer_headroom"] == pytest.approx(headroom["headroom"] / 2)
    assert len(limits.rows) == 1


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_the_walk_through_a_plan_waits_for_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of 2, with a wire that delivers only when it is waited for."""
    tar = importlib.import_module("tailcut.bench.peers.tar")
    other = np.arange(6, dtype=np.float32) * 10
    array = np.arange(6, dtype=np.float32)
    sent: list[np.ndarray[Any, Any]] = []

    class Work:
        def __init__(self, deliver: Any) -> None:
            self.wait = deliver

    def isend(tensor: Any, peer: int, tag: int) -> Work:
        assert peer == 1
        return Work(lambda: sent.append(tensor.numpy().copy().view(np.float32)))

    def irecv(tensor: Any, peer: int, tag: int) -> Work:
        data = other[:3] if tag == 0 else (np.arange(6, dtype=np.float32) + other)[3:]
        return Work(lambda: tensor.numpy().view(np.float32).__setitem__(slice(None), data))

    monkeypatch.setattr(tar.dist, "isend", isend)
    monkeypatch.setattr(tar.dist, "irecv", irecv)
    part = tar.BUILDERS["transpose"](
        collective=tar.Collective.ALL_REDUCE, size=2, rank=0, count=6, itemsize=4
    )
    tar.run(part, array, np.empty(part.stage_bytes, dtype=np.uint8), "sum")
    assert array.tolist() == [0, 11, 22, 33, 44, 55]
    assert [piece.tolist() for piece in sent] == [[3, 4, 5], [0, 11, 22]]


LATE = """
summary = "A test."
hosts = 2
[stragglers]
distribution = "constant"
lag_ms = 80
hosts = [1]
[background]
members = 2
rate_mbit = 5
"""


class TestInALab:
    pytestmark = needs_lab

    def test_late_starts_stand_apart_and_every_turn_says_what_the_lab_saw(self, tmp_path: Path) -> None:
        path, out = tmp_path / "late.toml", tmp_path / "r.jsonl"
        path.write_text(LATE)
        peers = "gloo,tar-tcp" if importlib.util.find_spec("torch") else "none"
        words = ["bench", "--lab", str(path), "-b", "100K", "-e", "100K", "-n", "3", "-w", "1"]
        done = CliRunner().invoke(app, [*words, "--rounds", "1", "--against", peers, "--output", str(out)])
        assert done.exit_code == 0, done.output
        records = read(out)
        turns = [record for record in records if record["kind"] == "samples"]
        assert len(turns) == (3 if peers != "none" else 1)
        for turn in turns:
            assert all(lag >= 75e6 for lag in turn["lags_ns"][1])
            pairs = list(zip(turn["durations_ns"], turn["transfers_ns"], strict=True))
            # Rank 0 began 80 ms before rank 1, and an AllReduce needs both.
            assert all(duration >= transfer + 60e6 for duration, transfer in pairs)
            assert turn["lab"]["background_mbit"] == pytest.approx(10, rel=0.5)
            assert turn["lab"]["oversize"] == 0 and turn["wire"]["sent_bytes"] > 100_000
        assert [record["name"] for record in records if record["kind"] == "scenario"] == ["late"]
        assert any(record["kind"] == "headroom" for record in records) == (peers != "none")
        assert "What the lab saw" in done.output

    @pytest.mark.parametrize("name", ["mpich", "intel-mpi"])
    def test_an_mpi_is_led_onto_the_hosts_and_talks_over_their_cables(
        self, name: str, tmp_path: Path
    ) -> None:
        if remedy := baselines.missing([name]):
            pytest.skip(f"not installed: {remedy[name]}")
        with Hosts(3) as hosts, Team(baselines.PEERS[name](), 3, hosts) as team:
            turn = team.measure(30_000, iterations=2, warmup=1, timeout_s=40)
            sent = [hosts.counters(host).sent_bytes for host in range(3)]
        assert len(turn.durations_ns) == 2
        # At least 2 (n - 1) / n of the 120,000 bytes by each rank in each of the three operations.
        assert turn.wire.sent_bytes > 3 * 3 * 4 / 3 * 120_000
        assert min(sent) > 100_000

    def test_where_udp_is_blocked_the_others_are_measured_and_the_reason_is_kept(
        self, tmp_path: Path
    ) -> None:
        if importlib.util.find_spec("torch") is None:
            pytest.skip("needs a peer: PyTorch")
        out = tmp_path / "r.jsonl"
        words = ["bench", "--lab", "blocked", "-g", "2", "-b", "10K", "-e", "10K", "-n", "2", "-w", "1"]
        done = CliRunner().invoke(app, [*words, "--rounds", "1", "--output", str(out)])
        assert done.exit_code == 1, done.output
        (absent,) = [record for record in read(out) if record["kind"] == "absent"]
        assert absent["contender"] == "tailcut" and "UDP" in absent["error"]

    def test_a_scenario_that_is_none_is_refused(self) -> None:
        done = CliRunner().invoke(app, ["bench", "--lab", "foggy"])
        assert done.exit_code == 2 and "no scenario 'foggy'" in " ".join(done.output.split())
