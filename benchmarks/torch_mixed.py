"""Does the backend ever hang? Mixed collectives on 4 ranks, again and again in fresh processes.

python benchmarks/torch_mixed.py              20 times (minutes)
python benchmarks/torch_mixed.py --times 1    a try

Every one of 200 iterations draws, alike on all ranks, some of: all_reduce sync and async, with futures, of
several dtypes and sizes; broadcast, all_gather, reduce_scatter, coalesced calls, sub-groups, point to point,
a barrier. Collectives of ours and of Gloo are in flight at the same time. Values are compared.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Results

RESULTS = Path(__file__).resolve().parent / "results/torch_mixed.jsonl"
RANKS, ITERATIONS, LIMIT_S = 4, 200, 240.0


class Mixer:
    """One rank: draws from a seed that all ranks share."""

    def __init__(self, seed: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.random = random.Random(seed)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]

    def iterate(self) -> None:
        kinds = [self.reduce, self.future, self.broadcast, self.gather, self.scatter, self.coalesced]
        kinds += [self.half, self.neighbours, self.barrier, self.uneven]
        checks = [self.random.choice(kinds)() for _ in range(self.random.randint(1, 6))]
        for check in checks:  # only now: until here they were in flight together
            check()

    def filled(self, dtype: Any = None) -> Any:
        length = round(2 ** self.random.uniform(0, 17))
        dtype = dtype or self.random.choice(("float32", "float64", "bfloat16", "int64", "uint8"))
        return self.torch.full((length,), self.rank + 1, dtype=getattr(self.torch, dtype))

    def every(self, tensor: Any, value: float) -> None:
        found = tensor.unique().tolist()
        assert found == [value], f"{found} instead of {value}"

    def reduce(self) -> Any:
        tensor = self.filled()
        work = self.dist.all_reduce(tensor, async_op=self.random.random() < 0.7)

        def check() -> None:
            if work is not None:
                work.wait()
            self.every(tensor, 10)

        return check

    def future(self) -> Any:
        tensor = self.filled("float32")
        doubled = (
            self.dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
        )
        return lambda: self.every(doubled.wait(), 20)

    def uneven(self) -> Any:
        tensor = self.torch.full((9, 4), self.rank + 1.0).t()
        work = self.dist.all_reduce(tensor, async_op=True)
        return lambda: (work.wait(), self.every(tensor, 10))

    def broadcast(self) -> Any:
        tensor, source = self.filled(), self.random.randrange(self.size)
        work = self.dist.broadcast(tensor, source, async_op=True)
        return lambda: (work.wait(), self.every(tensor, source + 1))

    def gather(self) -> Any:
        own = self.filled()
        outputs = [self.torch.zeros_like(own) for _ in range(self.size)]
        work = self.dist.all_gather(outputs, own, async_op=True)
        return lambda: (work.wait(), [self.every(each, rank + 1) for rank, each in enumerate(outputs)])

    def scatter(self) -> Any:
        own = self.filled()
        inputs, output = own.repeat(self.size), self.torch.zeros_like(own)
        work = self.dist.reduce_scatter_tensor(output, inputs, async_op=True)
        return lambda: (work.wait(), self.every(output, 10))

    def coalesced(self) -> Any:
        tensors = [self.filled("float32") for _ in range(3)]
        with self.dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for each in tensors:
                self.dist.all_reduce(each)
        return lambda: (manager.wait(), [self.every(each, 10) for each in tensors])

    def half(self) -> Any:
        which = self.rank // 2
        tensor = self.filled("float32")
        work = self.dist.all_reduce(tensor, group=self.halves[which], async_op=True)
        return lambda: (work.wait(), self.every(tensor, 3 + 4 * which))

    def neighbours(self) -> Any:
        sent, found = self.filled("float32"), self.torch.zeros(0)
        found = self.torch.zeros_like(sent)
        works = [self.dist.isend(sent, (self.rank + 1) % self.size)]
        works.append(self.dist.irecv(found, (self.rank - 1) % self.size))
        return lambda: ([work.wait() for work in works], self.every(found, (self.rank - 1) % self.size + 1))

    def barrier(self) -> Any:
        self.dist.barrier()
        return lambda: None


def rank_main(backend: str, seed: int, iterations: int) -> None:
    """In a rank's process, with the environment of a launcher."""
    import faulthandler

    import torch
    import torch.distributed as dist

    faulthandler.dump_traceback_later(LIMIT_S - 20, exit=True)
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    mixer = Mixer(seed)
    for _ in range(iterations):
        mixer.iterate()
    dist.destroy_process_group()


def run_once(backend: str, seed: int, iterations: int, port: int) -> tuple[float, str]:
    """Seconds, and what went wrong."""
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{RANKS}"}
    environ |= {"GLOO_SOCKET_IFNAME": "lo", "TAILCUT_SOCKET_IFNAME": "=lo"}
    command = [sys.executable, __file__, "--rank", "--backend", backend, "--seed", f"{seed}"]
    command += ["--iterations", f"{iterations}"]
    begun = time.monotonic()
    running = [
        subprocess.Popen(command, env={**environ, "RANK": f"{rank}"}, stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    problems = []
    for rank, process in enumerate(running):
        try:
            _, said = process.communicate(timeout=max(1.0, begun + LIMIT_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
            problems.append(f"rank {rank} hung: {said[-2000:]}")
            continue
        if process.returncode:
            problems.append(f"rank {rank} ended with {process.returncode}: {said[-2000:]}")
    return time.monotonic() - begun, "\n".join(problems)


def main(
    times: Annotated[int, typer.Option(help="Runs, each in fresh processes.")] = 20,
    iterations: Annotated[int, typer.Option(help="Iterations of each run.")] = ITERATIONS,
    seed: Annotated[int, typer.Option(help="Of the first run; the next ones count on.")] = 1,
    backend: Annotated[str, typer.Option(help="tailcut, or gloo to compare.")] = "tailcut",
    port: Annotated[int, typer.Option(help="Of the rendezvous on this machine.")] = 29611,
    output: Annotated[Path, typer.Option(help="The file of results.")] = RESULTS,
    rank: Annotated[bool, typer.Option("--rank", hidden=True)] = False,
) -> None:
    """200 iterations of mixed collectives on 4 ranks, 20 times."""
    if rank:
        rank_main(backend, seed, iterations)
        return
    console = terminal()
    settings = {"times": times, "iterations": iterations, "seed": seed, "backend": backend, "ranks": RANKS}
    with Results(output, "torch_mixed", settings) as results:
        for at in range(times):
            seconds, problem = run_once(backend, seed + at, iterations, port + at)
            results.add("try", seed=seed + at, seconds=round(seconds, 1), problem=problem)
            console.print(f"seed {seed + at}: {seconds:.1f} s, {problem or 'fine'}", highlight=False)
        tries = results.of("try")
        failed = [f"{each['seed']}" for each in tries if each["problem"]]
        longest = max(each["seconds"] for each in tries)
        heads = ("backend", "runs", "iterations each", "failed (seeds)", "longest run, s")
        cells = (backend, f"{times}", f"{iterations}", ", ".join(failed) or "none", f"{longest:g}")
        notes = ["A run hangs when it takes longer than 240 s. Start-up of the processes is included."]
        finish(results, "Mixed collectives", [Sheet("Runs", heads, [cells])], notes, console)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
