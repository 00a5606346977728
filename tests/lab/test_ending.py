"""No namespace and no process is left: after success, failure, signals, and kill -9 followed by clean()."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tailcut.lab import Hosts, clean, leftovers, missing_tools

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]

# A lab in a process of its own, with a process on host 1 that ignores SIGTERM; prints that one's pid.
LAB = """
import sys, time
from tailcut.lab import Hosts
with Hosts(2) as hosts:
    stubborn = "trap '' TERM; echo; sleep 300; sleep 300"
    child = hosts.spawn(1, ["sh", "-c", stubborn], stdout=-1)
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(300)
"""


def of_process(pid: int) -> list[str]:
    return [name for name in leftovers.namespaces() if name.startswith(f"tailcut-{pid}-")]


@pytest.fixture
def lab() -> Iterator[tuple[subprocess.Popen[str], int]]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-c", LAB], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert len(of_process(process.pid)) == 3
        yield process, child
    finally:
        process.kill()
        process.wait()
        clean()


def gone(pid: int) -> bool:
    """Waits a little for the process to end (a zombie has ended)."""
    deadline = time.monotonic() + 5
    while leftovers.start_of(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return leftovers.start_of(pid) is None


def test_success_leaves_nothing() -> None:
    with Hosts(3) as hosts:
        child = hosts.spawn(2, ["sleep", "300"])
        assert len(of_process(os.getpid())) == 4
    assert of_process(os.getpid()) == []
    assert gone(child.pid)
    hosts.close()  # once more does no harm


def test_failure_in_the_block_leaves_nothing_and_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), Hosts(2):
        _ = 1 // 0
    assert of_process(os.getpid()) == []


def test_failure_while_building_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Hosts, percent: float) -> None:
        assert len(of_process(os.getpid())) == 3
        raise RuntimeError("planted")

    monkeypatch.setattr(Hosts, "set_loss", broken)
    with pytest.raises(RuntimeError, match="planted"), Hosts(2):
        pass
    assert of_process(os.getpid()) == []


def test_processes_nobody_knows_of_are_ended_too() -> None:
    with Hosts(1) as hosts:
        shell = hosts.spawn(0, ["sh", "-c", "setsid sleep 300 & echo $!"], stdout=subprocess.PIPE, text=True)
        assert shell.stdout is not None
        orphan = int(shell.stdout.readline())
        assert leftovers.start_of(orphan) is not None
    assert gone(orphan)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_nothing(lab: tuple[subprocess.Popen[str], int], number: signal.Signals) -> None:
    process, child = lab
    process.send_signal(number)
    assert process.wait(timeout=20) != 0
    assert of_process(process.pid) == []
    assert gone(child)


def test_kill_9_takes_the_processes_along_and_clean_removes_the_rest(
    lab: tuple[subprocess.Popen[str], int],
) -> None:
    process, child = lab
    with Hosts(1):
        alive = of_process(os.getpid())
        process.kill()
        process.wait()
        assert gone(child)
        names = of_process(process.pid)
        assert len(names) == 3
        removed = clean()
        assert set(names) <= set(removed)
        assert of_process(process.pid) == []
        assert of_process(os.getpid()) == alive  # the living lab's stay
    assert clean() == []
