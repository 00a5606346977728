"""The harness measures what it says, and tells who lied, hung or died."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailcut.bench.team import Peer, Team, TeamError
from tailcut.lab import Hosts, missing_tools
from tailcut.lab.leftovers import start_of

TOY = Peer("toy", Path(__file__).with_name("toy.py"))


def pids(team: Team) -> list[int]:
    return [process.pid for process in team._processes]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(TOY, 3) as living:
        yield living


def test_every_operation_gives_one_time_the_longest_of_all_ranks(team: Team) -> None:
    started = time.monotonic_ns()
    turn = team.measure(1000, iterations=7, warmup=2, variant="good")
    took = time.monotonic_ns() - started
    assert len(turn.durations_ns) == len(turn.spread_ns) == 7
    assert all(0 < duration < took for duration in turn.durations_ns)
    assert sum(turn.durations_ns) < took
    assert turn.operations == 9
    assert turn.counters == {"calls": 3 * 9}
    assert turn.said == "toy good"
    # Two ranks send their vector to rank 0 and get the sum: 4 vectors an operation, and small barriers.
    assert turn.wire.sent_bytes >= 4 * 4000 * 9
    assert team.versions["toy"] == "1"


def test_a_stream_ends_on_all_ranks_with_the_same_operation(team: Team) -> None:
    order = {"do": "stream", "elements": 64, "in_flight": 3, "seconds": 0.3, "seed": 5}
    answers = team.ask(order, timeout_s=20)
    counts = {len(answer["ends_ns"]) for answer in answers}
    assert len(counts) == 1
    assert counts.pop() > 3
    for answer in answers:
        assert answer["ends_ns"] == sorted(answer["ends_ns"])
        assert 0.3e9 <= answer["ends_ns"][-1] - answer["begin_ns"] < 5e9


@pytest.mark.parametrize(
    ("variant", "complaint"),
    [
        ("lie", "rank 1 has a wrong result: operation 2: 1 of 5 elements are wrong, the first is 2"),
        ("stale", "rank 1 has a wrong result: operation 2: 5 of 5 elements are wrong"),
        ("idle", "rank 1 has a wrong result: operation 2"),
        ("raise", "rank 1: ZeroDivisionError: planted"),
        ("die", "rank 1 ended in the middle of an order.*rank 1 takes its leave"),
        ("hang", r"ranks \[0, 1, 2\] gave no answer in 2 s"),
    ],
)
def test_who_misbehaves_is_named_and_nothing_is_left_running(variant: str, complaint: str) -> None:
    with Team(TOY, 3) as team:
        processes = pids(team)
        with pytest.raises(TeamError, match=f"(?s)toy: {complaint}"):
            team.measure(5, iterations=3, warmup=1, variant=variant, timeout_s=2)
    assert all(start_of(pid) is None for pid in processes)


def test_a_team_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no such library')")
    with pytest.raises(TeamError, match=r"(?s)ranks \[0, 1\] did not come up.*no such library"):
        Team(Peer("broken", broken), 2)


def test_a_launcher_starts_the_ranks_itself(tmp_path: Path) -> None:
    launcher = tmp_path / "mpiexec"
    each = 'for r in $(seq 0 $((n - 1))); do "$@" --rank $r --port 29877 & done'
    launcher.write_text(f"#!/bin/sh\nshift\nn=$1\nshift\n{each}\nwait\n")
    launcher.chmod(0o755)
    peer = Peer("launched", TOY.communicator, launcher=(str(launcher),), env={"TOY": "1"})
    with Team(peer, 2) as team:
        assert len(team.measure(10, iterations=2, warmup=0).durations_ns) == 2
        group = os.getpgid(pids(team)[0])
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


@pytest.mark.netns
@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here")
def test_in_a_lab_every_rank_is_on_its_host_and_the_cables_are_counted() -> None:
    with Hosts(2, rate_mbit=100) as hosts, Team(TOY, 2, hosts) as team:
        turn = team.measure(50_000, iterations=3, warmup=1)
        hosts.set_loss(2)
        lossy = team.measure(50_000, iterations=3, warmup=1)
    # 200 KB each way one after the other at 100 Mbit/s: 32 ms and headers.
    assert min(turn.durations_ns) > 32e6
    assert 4 * 2 * 200_000 < turn.wire.sent_bytes < 1.2 * 4 * 2 * 200_000
    assert turn.wire.lost == turn.wire.queue_drops == 0
    assert lossy.wire.lost > 0
