"""Rule 4: after an operation has returned, raised or timed out, the engine does not touch its memory."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.protected import CASES
from engine.scenario import POISON
from engine.virtual import KIND_NAMES, KINDS, MS, SECOND, US, Op, Virtual
from group.reference import same_bits
from tailcut.types import Collective

SIZE = 4
Kind = tuple[str, Collective]
Captured = list[tuple[int, int, int, bytes]]
Again = Callable[[Captured, random.Random], Captured]
SCRIPT = Path(__file__).with_name("protected.py")

kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)


def all_of_it(captured: Captured, draw: random.Random) -> Captured:
    """Everything again, in the order it had."""
    return captured


def shuffled(captured: Captured, draw: random.Random) -> Captured:
    return draw.sample(captured, len(captured))


def twice_from_the_end(captured: Captured, draw: random.Random) -> Captured:
    return captured[::-1] * 2


@pytest.mark.parametrize("again", [all_of_it, shuffled, twice_from_the_end])
@kinds
def test_late_packets_change_nothing(
    kind: Kind, again: Callable[[Captured, random.Random], Captured]
) -> None:
    """What was sent during an operation comes once more after it; the caller's new content stays."""
    for seed in range(3):
        network = {"loss": 0.05, "jitter_ns": 100 * US}
        virtual = Virtual(SIZE, seed=seed, network=network)
        virtual.net.capture(True)
        started = [one for count in (10, 40_000) for one in virtual.start_all(Op(count, *kind, salt=count))]
        virtual.finish(20 * SECOND)
        for one in started:
            assert one.code == "none"
            assert same_bits(one.output, one.op.expected(SIZE)[one.rank])
            one.fill(POISON)
        virtual.net.capture(False)
        for _, source, target, datagram in again(virtual.net.take_captured(), random.Random(seed)):
            virtual.net.inject(target, source, datagram)
        assert virtual.run(10 * SECOND) == []
        assert all(one.holds(POISON) for one in started)
        check_still_works(virtual, Op(40_000, *kind, salt=99))


def check_still_works(virtual: Virtual, op: Op) -> None:
    again = virtual.start_all(op)
    virtual.finish(20 * SECOND)
    for one in again:
        assert one.code == "none", one.result
        assert same_bits(one.output, one.op.expected(SIZE)[one.rank])
    assert virtual.settle(10 * SECOND)


@kinds
def test_a_failed_operation_lets_go_at_once(kind: Kind) -> None:
    """Its peers still send at full speed when it is cancelled; not a byte arrives any more."""
    for seed in range(5):
        virtual = Virtual(SIZE, seed=seed, network={"rate": 125e6, "loss": 0.01})
        started = virtual.start_all(Op(300_000, *kind))
        virtual.run((1 + seed) * MS)  # of the 7 ms that it would take
        virtual.net.cancel(2, started[2].ticket)
        assert started[2] in virtual.poll()
        started[2].fill(POISON)
        ended = virtual.finish(5 * SECOND)
        assert {one.code for one in ended} == {"cancelled"}
        assert started[2].holds(POISON)


def protected(case: str, seed: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), case, str(seed)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("case", [case for case in CASES if case != "too early"])
def test_memory_taken_away_is_not_missed(case: str) -> None:
    """Pages protected right after the end, late packets injected: any touch would kill the process."""
    done = protected(case, seed=1)
    assert done.returncode == 0, (
        f"python {Path(__file__).with_name('protected.py')} {case} 1\n{done.stderr[-2000:]}"
    )
    assert done.stdout == "untouched\n"


def test_a_touch_does_kill() -> None:
    """So that the test above can fail: memory taken away during an operation."""
    done = protected("too early", seed=1)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGABRT), done.stderr[
        -2000:
    ]  # ABRT: a sanitizer's way
    assert done.stdout == ""
