"""The helper that runs ranks tells the truth: values by rank, first failures, deaths and hangs."""

from __future__ import annotations

import os
import signal
import time

import pytest

import ranks
from ranks import Died, Hung, Place


def identity(place: Place, word: str) -> tuple[int, int, str, str]:
    return place.rank, place.size, word, os.environ.get("TAILCUT_TEST_WORD", "")


def fails_on_one(place: Place) -> None:
    print(f"rank {place.rank} was here", flush=True)
    if place.rank == 1:
        raise LookupError("lost my way")
    time.sleep(60)


def ends_hard(place: Place) -> int:
    if place.rank == 0:
        os._exit(7)
    return place.rank


def sleeps(place: Place) -> None:
    time.sleep(60)


def test_values_come_by_rank() -> None:
    said = ranks.run(identity, 3, "hello", environ={"TAILCUT_TEST_WORD": "set"})
    assert said == [(rank, 3, "hello", "set") for rank in range(3)]


def test_the_first_failure_is_shown_and_nobody_waits_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE_S", 0.2)
    started = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        ranks.run(fails_on_one, 3)
    text = str(caught.value)
    assert text.startswith("rank 1 failed after")
    assert "LookupError: lost my way" in text and "in fails_on_one" in text and "rank 1 was here" in text
    assert "rank 0: Hung" in text and "rank 2: Hung" in text
    assert time.monotonic() - started < 20


def test_a_death_is_no_hang() -> None:
    first, second = ranks.reports(ends_hard, 2)
    assert isinstance(first.error, Died) and first.exit_code == 7
    assert (second.value, second.error) == (1, None)


def test_a_hang_shows_its_stack() -> None:
    (report,) = ranks.reports(sleeps, 1, timeout_s=1.0)
    assert isinstance(report.error, Hung)
    assert "in sleeps" in report.output


def test_ranks_can_be_killed_meanwhile() -> None:
    with ranks.Ranks(sleeps, 2) as running:
        for pid in running.pids:
            os.kill(pid, signal.SIGKILL)
        ended = running.wait(10)
    assert [report.exit_code for report in ended] == [-signal.SIGKILL] * 2


def test_leaving_the_context_leaves_no_process() -> None:
    with ranks.Ranks(sleeps, 2) as running:
        pids = running.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_threads_as_ranks() -> None:
    gather = ranks.ThreadGather(3)
    said = ranks.run_threads(lambda rank: gather.of(rank)(bytes([rank])), 3)
    assert said == [[b"\x00", b"\x01", b"\x02"]] * 3
