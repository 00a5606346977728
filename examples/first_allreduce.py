"""A first AllReduce: four ranks on this machine, several sizes, values checked against numpy.

    make hello
    python examples/first_allreduce.py --ranks 2 --repeat 500

Each rank is a process of its own, as in real training. An operation's time is that of its slowest rank.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import tailcut

SIZES_BYTES = (4, 4096, 65536, 1 << 20, 25 << 20)
WARM_UP = 3  # operations of each size that are not timed
BYTES_MAX = 500 << 20  # of one size in all: large operations are run less often, but LEAST times
LEAST = 10
PATIENCE_S = 120  # for everything together; the ranks' own errors come earlier


@dataclass(frozen=True)
class Measured:
    """What one rank saw of all operations of one size."""

    times_ns: list[int]
    plan: str
    resent_packets: int
    close: bool  # the values are those of numpy
    digest: str  # of the result's bytes: equal on all ranks, to the last bit


def turns(size_bytes: int, repeat: int) -> int:
    return max(LEAST, min(repeat, BYTES_MAX // size_bytes))


def contribution(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).standard_normal(count, dtype=np.float32)


def measure(group: tailcut.Group, rank: int, ranks: int, size_bytes: int, repeat: int) -> Measured:
    count = size_bytes // 4
    expected = sum((contribution(peer, count).astype(np.float64) for peer in range(ranks)), np.zeros(count))
    mine = contribution(rank, count)
    array = np.empty_like(mine)
    times_ns, resent, plan, close = [], 0, "", True
    for turn in range(WARM_UP + turns(size_bytes, repeat)):
        array[:] = mine
        group.barrier()
        begin = time.perf_counter_ns()
        outcome = group.all_reduce(array)
        elapsed = time.perf_counter_ns() - begin
        close = close and bool(np.allclose(array, expected, rtol=1e-5, atol=1e-5))
        if turn >= WARM_UP:
            times_ns.append(elapsed)
            resent += outcome.resent_packets
            plan = outcome.family
    return Measured(times_ns, plan, resent, close, hashlib.sha256(array.tobytes()).hexdigest())


def run_rank(rank: int, ranks: int, rendezvous: str, repeat: int, results: Any) -> None:
    with tailcut.connect(rank=rank, size=ranks, rendezvous=rendezvous) as group:
        for size_bytes in SIZES_BYTES:
            results.put((rank, size_bytes, measure(group, rank, ranks, size_bytes, repeat)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(ranks: int, repeat: int) -> dict[tuple[int, int], Measured]:
    """Runs the ranks; (size, rank) -> what it measured. Ends with an error if a rank does."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    processes = [
        spawn.Process(target=run_rank, args=(rank, ranks, rendezvous, repeat, results), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found: dict[tuple[int, int], Measured] = {}
    give_up = time.monotonic() + PATIENCE_S
    while len(found) < ranks * len(SIZES_BYTES):
        if any(process.exitcode for process in processes) or time.monotonic() > give_up:
            sys.exit(what_failed(processes))
        while not results.empty():
            rank, size_bytes, measured = results.get()
            found[size_bytes, rank] = measured
        time.sleep(0.05)
    for process in processes:
        process.join(10)
    return found


def size_text(size_bytes: int) -> str:
    for unit, length in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= length:
            return f"{size_bytes / length:g} {unit}"
    return f"{size_bytes} B"


def what_failed(processes: list[Any]) -> str:
    for process in processes:
        process.join(2)  # seconds for the others to say what they think of it
    ends = {rank: process.exitcode for rank, process in enumerate(processes) if process.exitcode}
    return f"failed, see above: rank and exit status {ends}" if ends else f"no end after {PATIENCE_S} s"


def show(found: dict[tuple[int, int], Measured], ranks: int) -> bool:
    table = Table(title=f"AllReduce (sum, float32) on {ranks} ranks of this machine")
    for name in ("size", "plan", "times", "p50 ms", "p99 ms", "GB/s", "resent packets", "ok"):
        table.add_column(name, justify="left" if name in ("plan", "ok") else "right")
    all_right = True
    for size_bytes in SIZES_BYTES:
        seen = [found[size_bytes, rank] for rank in range(ranks)]
        slowest_ns = np.max([measured.times_ns for measured in seen], axis=0)
        p50, p99 = np.percentile(slowest_ns, [50, 99])
        right = all(measured.close for measured in seen) and len({measured.digest for measured in seen}) == 1
        all_right = all_right and right
        resent = sum(measured.resent_packets for measured in seen)
        cells = [
            size_text(size_bytes),
            seen[0].plan,
            str(len(slowest_ns)),
            f"{p50 / 1e6:.3f}",
            f"{p99 / 1e6:.3f}",
        ]
        table.add_row(*cells, f"{size_bytes / p50:.3f}", str(resent), "yes" if right else "[red]NO[/red]")
    console = Console()
    console.print(table)
    console.print(
        "Times are those of the slowest rank; GB/s is size / p50; ok: equal to numpy, same bits on all."
    )
    return all_right


def main(ranks: int = 4, repeat: int = 100) -> None:
    """Runs AllReduce on several local ranks and prints what it did."""
    if not show(start(ranks, repeat), ranks):
        sys.exit("wrong values")


if __name__ == "__main__":
    typer.run(main)
