"""PyTorch's own distributed tests on Gloo and on tailcut, test by test, at world sizes 2 and 4.

python benchmarks/torch_suite.py                  all of them (about half an hour on two cores)
python benchmarks/torch_suite.py --only all_reduce --size 2

The tests come with torch (torch.testing._internal.distributed.distributed_test). Their all_reduce helper does
not compare values; ours does. A test that fails is run once more in fresh processes, so that nothing an
earlier test left behind is blamed on it; the second answer counts, for both backends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Record, Results

RANK = Path(__file__).resolve().parent / "peers/torch_suite_rank.py"
RESULTS = Path(__file__).resolve().parent / "results/torch_suite.jsonl"
START_S, TEST_S = 120.0, 60.0
# They ask whether the backend is called "gloo"; no other can pass.
ABOUT_THE_NAME = ("test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup")


class Died(Exception):
    """A rank ended, or had not answered in time."""


class Team:
    """The ranks of one backend and world size; started anew when one died or hung."""

    def __init__(self, backend: str, size: int) -> None:
        self.backend, self.size = backend, size
        self._ranks: list[subprocess.Popen[bytes]] = []
        self.names: list[str] = []
        self._unread: list[bytes] = []

    def start(self) -> None:
        self.stop()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environ["TAILCUT_SOCKET_IFNAME"] = "=lo"
        for rank in range(self.size):
            command = [sys.executable, str(RANK), self.backend, str(rank), str(self.size)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._ranks.append(subprocess.Popen(command, env=environ, **pipes))
        self._unread = [b""] * self.size
        self.names = self._answers(START_S)[0]

    def run(self, name: str) -> tuple[str, str]:
        """The worst answer of all ranks, and why; who dies or hangs costs a new start."""
        if not self._ranks:
            self.start()
        with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
            for part in ("barrier", "test_dir"):
                (Path(folder) / part).mkdir()
            order = json.dumps([name, str(Path(folder) / "store"), folder]) + "\n"
            try:
                for rank in self._ranks:
                    assert rank.stdin is not None
                    rank.stdin.write(order.encode())
                    rank.stdin.flush()
                answers = self._answers(TEST_S)
            except (Died, OSError) as problem:
                self.stop()
                return "failed", str(problem)
        for state in ("failed", "skipped"):
            for rank, (found, why) in enumerate(answers):
                if found == state:
                    return state, f"rank {rank}: {why}" if state == "failed" else why
        return "passed", ""

    def _answers(self, timeout_s: float) -> list[Any]:
        """One line of each rank."""
        deadline = time.monotonic() + timeout_s
        return [self._line(rank, deadline) for rank in range(self.size)]

    def _line(self, rank: int, deadline: float) -> Any:
        pipe = self._ranks[rank].stdout
        assert pipe is not None
        while b"\n" not in self._unread[rank]:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise Died(f"rank {rank} did not answer in time")
            content = os.read(pipe.fileno(), 65536)
            if not content:
                raise Died(f"rank {rank} died with code {self._ranks[rank].wait(5)}")
            self._unread[rank] += content
        line, _, self._unread[rank] = self._unread[rank].partition(b"\n")
        return json.loads(line)

    def stop(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait(10)
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._ranks = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def examine(team: Team, name: str) -> Record:
    """One test; a failure is tried once more in fresh processes."""
    begun = time.monotonic()
    state, why = team.run(name)
    again = state == "failed"
    if again:
        team.stop()
        state, why = team.run(name)
    seconds = round(time.monotonic() - begun, 2)
    return {"test": name, "state": state, "why": why[-3000:], "again": again, "seconds": seconds}


def compare(size: int, only: str, record: Any) -> None:
    """All tests on both backends; `record` takes what came of each."""
    with Team("gloo", size) as gloo, Team("tailcut", size) as ours:
        gloo.start()
        for name in gloo.names:
            if only not in name:
                continue
            for team in (gloo, ours):
                found = examine(team, name)
                record(backend=team.backend, size=size, **found)
                if team is gloo and found["state"] == "skipped":
                    break  # it would be skipped there as well: for want of GPUs, ranks or packages


def worse(records: list[Record], size: int) -> list[str]:
    """The tests that Gloo passes and tailcut does not."""
    passed = {
        backend: {
            each["test"]
            for each in records
            if (each["backend"], each["size"], each["state"]) == (backend, size, "passed")
        }
        for backend in ("gloo", "tailcut")
    }
    return sorted(passed["gloo"] - passed["tailcut"])


def main(
    size: Annotated[list[int] | None, typer.Option(help="World sizes.")] = None,
    only: Annotated[str, typer.Option(help="Only tests whose name contains this.")] = "",
    output: Annotated[Path, typer.Option(help="The file of results.")] = RESULTS,
) -> None:
    """PyTorch's own distributed tests on both backends."""
    console = terminal()
    sizes = size or [2, 4]
    with Results(output, "torch_suite", {"sizes": sizes, "only": only}) as results:

        def record(**found: Any) -> None:
            results.add("test", **found)
            if found["state"] != "skipped":
                again = ", at the second try" if found["again"] and found["state"] == "passed" else ""
                console.print(
                    f"{found['size']} ranks, {found['backend']}: {found['test']} {found['state']}{again}",
                    highlight=False,
                )

        for each in sizes:
            compare(each, only, record)
        tests = results.of("test")
        heads = ("ranks", "tests", "skipped", "Gloo passes", "tailcut passes", "only Gloo")
        sheet = Sheet("Passed", heads, [row(tests, each) for each in sizes])
        finish(
            results,
            "PyTorch's own distributed tests",
            [sheet],
            [" ".join(str(__doc__).split("\n\n")[2].split())],
            console,
        )
        real = [name for each in sizes for name in worse(tests, each) if name not in ABOUT_THE_NAME]
    raise typer.Exit(1 if real else 0)


def row(tests: list[Record], size: int) -> tuple[str, ...]:
    here = [each for each in tests if each["size"] == size]
    count = {
        (backend, state): sum(each["backend"] == backend and each["state"] == state for each in here)
        for backend in ("gloo", "tailcut")
        for state in ("passed", "skipped")
    }
    total = len({each["test"] for each in here})
    skipped, passed, ours = count["gloo", "skipped"], count["gloo", "passed"], count["tailcut", "passed"]
    missed = ", ".join(worse(tests, size)) or "none"
    return f"{size}", f"{total}", f"{skipped}", f"{passed}", f"{ours}", missed


if __name__ == "__main__":
    typer.run(main)
