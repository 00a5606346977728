"""Figure 3: many operations of random kinds over a network that loses 1 % of all packets.

python benchmarks/soak.py           10,000 operations
python benchmarks/soak.py --quick   300: a try, no evidence

Four ranks draw the same operations from one seed: 1 element to 1 MB (uniform in the logarithm), every dtype,
op, collective and schedule, eight tags whose order differs by rank, up to 8 in flight. Every result is
compared with the one computed from all inputs: equal to the last bit, but for float sums and products of the
ring, whose order is its own. Needs root (network namespaces, nftables); without it nothing is lost, and it
says so.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import importlib
import math
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import trial
import typer

from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Record, Results
from tailcut.lab import Hosts
from tailcut.lab.system import missing_tools

if TYPE_CHECKING:
    from ranks import Place
    from tailcut import Group

reference: Any = importlib.import_module("reference")

RESULTS = Path(__file__).resolve().parent / "results/soak.jsonl"
RANKS = 4
IN_FLIGHT = 8
TAGS = 8
LARGEST_BYTES = 1 << 20
OFFSETS = 1 << 16  # an input is a piece of a fixed pool from one of so many elements on
OPERATION_TIMEOUT_S = 120.0
WARM_UP_SHARE = 0.2  # of the operations; memory is compared with what was in use then
GROWTH_BYTES = 16 << 20  # by which a rank may grow after that: allocators do not give everything back
SAMPLES = 100  # of memory, over the run
SECONDS_EACH = 0.2  # an operation may take on average, before the run counts as hung
COLLECTIVES = ("all_reduce", "all_reduce", "reduce_scatter", "all_gather")
SCHEDULES = (None, "small", "ring", "transpose")  # None: the group's choice; no ring for 16-bit floats
ULPS = 16  # of the sum of magnitudes, for a ring's own order


@dataclasses.dataclass(frozen=True)
class Operation:
    """What all ranks must know of one operation; `offsets` says where each rank's input begins."""

    number: int
    collective: str
    dtype: str
    count: int
    op: str
    tag: int
    schedule: str | None
    offsets: tuple[int, ...]


def draw(seed: int, number: int, size: int) -> Operation:
    one = random.Random(f"{seed} {number}")
    dtype = one.choice(list(reference.DTYPES))
    schedules = [name for name in SCHEDULES if name != "ring" or dtype not in reference.HALVES]
    longest = LARGEST_BYTES // reference.DTYPES[dtype].itemsize
    return Operation(
        number,
        one.choice(COLLECTIVES),
        dtype,
        round(math.exp(one.uniform(0, math.log(longest)))),
        one.choice(reference.OPS),
        one.randrange(TAGS),
        one.choice(schedules),
        tuple(one.randrange(OFFSETS) for _ in range(size)),
    )


def ordered(operations: list[Operation], own: random.Random) -> list[Operation]:
    """In an order of this rank's own, but as given within each tag."""
    queues: dict[int, collections.deque[Operation]] = collections.defaultdict(collections.deque)
    for operation in operations:
        queues[operation.tag].append(operation)
    tags = [operation.tag for operation in operations]
    own.shuffle(tags)
    return [queues[tag].popleft() for tag in tags]


class Soak:
    """One rank's operations: inputs from pools that all ranks share, results checked when they are over."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.checked = 0  # results compared
        sizes = {name: LARGEST_BYTES // dtype.itemsize + OFFSETS for name, dtype in reference.DTYPES.items()}
        self._pools = {name: reference.contribution(name, length, 0) for name, length in sizes.items()}

    def _inputs(self, operation: Operation) -> list[Any]:
        pool = self._pools[operation.dtype]
        return [pool[offset : offset + operation.count] for offset in operation.offsets]

    def start(self, operation: Operation) -> tuple[Operation, Any, Any]:
        """The operation, its Work and the array that will hold the result."""
        group = self.group
        common: dict[str, Any] = {"tag": operation.tag, "timeout": OPERATION_TIMEOUT_S}
        mine = self._inputs(operation)[group.rank].copy()
        part = reference.shard(operation.count, group.size, group.rank)
        if operation.collective == "all_reduce":
            work = group.all_reduce_async(mine, operation.op, schedule=operation.schedule, **common)
            return operation, work, mine
        if operation.collective == "reduce_scatter":
            output = np.zeros_like(mine[part])
            return operation, group.reduce_scatter_async(mine, output, operation.op, **common), output
        output = np.zeros_like(mine)
        return operation, group.all_gather_async(mine[part].copy(), output, **common), output

    def finish(self, operation: Operation, work: Any, result: Any) -> str:
        """Waits; what is wrong with the result, or empty."""
        family = work.wait().family
        self.checked += 1
        inputs = self._inputs(operation)
        if operation.collective == "all_gather":
            parts = [
                reference.shard(operation.count, self.group.size, rank) for rank in range(self.group.size)
            ]
            want = np.concatenate([array[part] for array, part in zip(inputs, parts, strict=True)])
        else:
            want = reduction(operation.op, inputs)
            if operation.collective == "reduce_scatter":
                want = want[reference.shard(operation.count, self.group.size, self.group.rank)]
        if reference.same_bits(result, want):
            return ""
        free_order = family == "ring" and operation.op in ("sum", "avg", "prod") and want.dtype.kind == "f"
        if free_order and close(result, want, reduction(operation.op, [np.abs(array) for array in inputs])):
            return ""
        differing = int(np.count_nonzero(result != want))
        return f"{operation} by {family}: {differing} of {want.size} elements are wrong"


def reduction(op: str, inputs: list[Any]) -> Any:
    """In rank order; the average of integers without the detour of the tests' reference over Python's own."""
    dtype = inputs[0].dtype
    if op != "avg" or dtype.kind not in "iu":
        return reference.reduced(op, inputs)
    total = reference.reduced("sum", inputs)
    quotient = total // len(inputs)
    return (quotient + ((total < 0) & (quotient * len(inputs) != total))).astype(dtype)  # toward zero


def close(result: Any, want: Any, magnitudes: Any) -> bool:
    return bool((np.abs(result - want) <= ULPS * np.finfo(want.dtype).eps * magnitudes).all())


def resources() -> dict[str, int]:
    """Of this process: resident bytes, threads, descriptors."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def run_soak(place: Place, operations: int, seed: int) -> dict[str, Any]:
    """A rank's process."""
    with place.connect() as group:  # what the first group leaves for good is not a leak: imports, caches
        group.barrier()
    before, started = resources(), time.monotonic()
    own = random.Random(f"{seed} order of {place.rank}")
    wrong: list[str] = []
    memory: list[tuple[int, int]] = []  # operations done, resident bytes
    flying: collections.deque[tuple[Operation, Any, Any]] = collections.deque()
    error = ""
    group = place.connect()
    soak = Soak(group)
    try:
        # Every rank starts all of one batch before it starts the next, so the oldest one in flight is always
        # one that all ranks will start: no deadlock, whatever the orders.
        for first in range(0, operations, IN_FLIGHT):
            numbers = range(first, min(operations, first + IN_FLIGHT))
            for operation in ordered([draw(seed, number, place.size) for number in numbers], own):
                if len(flying) == IN_FLIGHT:
                    wrong += filter(None, [soak.finish(*flying.popleft())])
                flying.append(soak.start(operation))
            if first // IN_FLIGHT % max(1, operations // IN_FLIGHT // SAMPLES) == 0:
                memory.append((first, resources()["rss_bytes"]))
        while flying:
            wrong += filter(None, [soak.finish(*flying.popleft())])
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    memory.append((operations, resources()["rss_bytes"]))
    counters, elapsed = group.counters(), time.monotonic() - started
    clean = group.close()
    checked = soak.checked
    flying.clear()
    del soak, group
    gc.collect()
    return {
        "wrong": wrong,
        "checked": checked,
        "error": error,
        "before": before,
        "after": resources(),
        "memory": memory,
        "counters": counters,
        "elapsed_s": elapsed,
        "closed_clean": clean,
    }


def memory_of(ended: Record, operations: int) -> Record:
    """Medians at the end of the warm-up and at the end, and the slope between, in bytes."""
    warm = [(done, rss) for done, rss in ended["memory"] if done >= WARM_UP_SHARE * operations]
    tenth = max(1, len(warm) // 10)
    done, rss = (np.array(column, dtype=float) for column in zip(*warm, strict=True))
    slope = float(np.polyfit(done, rss, 1)[0]) if len(warm) > 1 else 0.0
    first, last = float(np.median(rss[:tenth])), float(np.median(rss[-tenth:]))
    return {"warm_bytes": first, "end_bytes": last, "slope_bytes_per_operation": slope}


def judge(found: list[Record], operations: int, verdicts: trial.Verdicts, lost: int | None) -> None:
    errors = [f"rank {each['rank']}: {each['error']}" for each in found if each["error"]]
    verdicts.check("no error", not errors, "; ".join(errors) or f"{operations} operations on {RANKS} ranks")
    whole = [each for each in found if "memory" in each]
    wrong = sum(len(each["wrong"]) for each in whole)
    checked = sum(each["checked"] for each in whole)
    all_right = not wrong and checked == RANKS * operations
    verdicts.check("no wrong value", all_right, f"{wrong} wrong of {checked} results compared")
    growth = max((each["end_bytes"] - each["warm_bytes"] for each in whole), default=math.inf)
    what = f"memory grows by at most {GROWTH_BYTES >> 20} MB after the first {WARM_UP_SHARE:.0%}"
    verdicts.check(what, growth <= GROWTH_BYTES, f"{growth / (1 << 20):.1f} MB")
    for name in ("threads", "descriptors"):
        more = [each["after"][name] - each["before"][name] for each in whole]
        verdicts.check(f"no {name} leaked", not any(more) and bool(more), f"by rank {more}")
    if lost is not None:
        verdicts.check("packets were lost", lost > 0, f"{lost} lost in the switch")


def table(found: list[Record]) -> Sheet:
    rows = []
    for each in found:
        if "memory" not in each:
            continue
        counters = each["counters"]
        sizes = [f"{each[name] / (1 << 20):.1f}" for name in ("warm_bytes", "end_bytes")]
        ends = [f"{each['before'][name]} / {each['after'][name]}" for name in ("threads", "descriptors")]
        counts = [str(counters[name]) for name in ("data_sent", "data_resent", "dropped_duplicate")]
        slope = f"{each['slope_bytes_per_operation']:.0f}"
        rows.append((str(each["rank"]), f"{each['elapsed_s']:.0f}", *sizes, slope, *ends, *counts))
    heads = ("rank", "seconds", "MB warm", "MB end", "bytes per operation", "threads before / after")
    return Sheet("Ranks", (*heads, "descriptors before / after", "data sent", "resent", "duplicates"), rows)


def run_ranks(operations: int, seed: int, hosts: Hosts | None, results: Results) -> list[Record]:
    limit_s = 60 + operations * SECONDS_EACH
    reports = trial.ranks.reports(
        run_soak, RANKS, operations, seed, timeout_s=limit_s, grace_s=30.0, hosts=hosts
    )
    found = []
    for report in reports:
        fields = {"error": report.text()} if report.failed else report.value
        if not report.failed:
            fields.update(memory_of(fields, operations))
        found.append(results.add("rank", rank=report.rank, **fields))
    return found


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    operations: Annotated[int, typer.Option(help="how many")] = 10_000,
    loss: Annotated[float, typer.Option(help="per cent of single packets")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the operations and their orders")] = 1,
    quick: Annotated[bool, typer.Option(help="300 operations into *-quick.jsonl: no evidence")] = False,
) -> None:
    """Random operations, 8 in flight, on four hosts with random loss."""
    console = terminal()
    path = output.with_stem(output.stem + "-quick") if quick else output
    operations = min(operations, 300) if quick else operations
    problem = missing_tools()
    where = f"loopback without loss ({problem})" if problem else f"four hosts, {loss:g} % of packets lost"
    console.print(f"{operations} operations on {where}", highlight=False)
    settings = {
        "operations": operations,
        "loss_percent": 0.0 if problem else loss,
        "seed": seed,
        "where": where,
    }
    with Results(path, "soak", settings) as results, contextlib.ExitStack() as stack:
        hosts = None
        if not problem:
            hosts = stack.enter_context(Hosts(RANKS, rate_mbit=None, loss_percent=loss))
        verdicts = trial.Verdicts(results, console)
        found = run_ranks(operations, seed, hosts, results)
        lost = hosts.lost() if hosts and loss else None
        judge(found, operations, verdicts, lost)
        notes = [
            f"{operations} operations, {where}; {IN_FLIGHT} in flight, {TAGS} tags, each rank its own order."
        ]
        finish(results, "Soak", [table(found), verdicts.sheet()], notes, console)
    raise typer.Exit(0 if verdicts.fine else 1)


if __name__ == "__main__":
    typer.run(main)
