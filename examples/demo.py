"""The same training on Gloo and on tailcut: four ranks, one after the other, and what each step cost.

    make demo
    python examples/demo.py --network loopback
    python examples/demo.py --network tail-3          any scenario of `tailcut lab list`

Where the lab works (root, nftables, ethtool) each rank runs on a host of its own, in a network that loses one
packet in a hundred; elsewhere over loopback. It is a demonstration on one machine, not a measurement: each
library runs once. `tailcut bench` takes turns and says how sure its figures are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tailcut.bench import page
from tailcut.bench.digest import digest
from tailcut.bench.figures import quantile, resolvable
from tailcut.bench.report import Sheet, show, summaries, terminal
from tailcut.bench.request import default_output
from tailcut.bench.results import Record, Results
from tailcut.bench.team import ONE_THREAD, Wire, loopback_bytes, processor_times
from tailcut.lab import Lab, LabError, missing_tools, open_scenario, processes, scenario
from tailcut.lab.fields import ScenarioError

SCRIPT = Path(__file__).with_name("train_gpt.py")
AUTO, LOOPBACK = "auto", "loopback"
SCENARIO = "lossy-1"  # where the lab works and nobody asks for another
BACKENDS = ("gloo", "tailcut")
PORT = 29_400  # in the lab every port is free
PATIENCE_S = 600  # for one training, its start included; on an idle machine it takes one
STEP, REDUCING = "training step", "AllReduce in a step"
LAST = 10  # steps whose losses are averaged: one batch's loss is noise
OTHERS_MAX = 0.15  # of all cores; with more, it is luck that is compared
LOSSES_EQUAL = 0.02  # the libraries add in different orders, and training carries the last digits on
TICKS = os.sysconf("SC_CLK_TCK")  # a second
SAID = re.compile(r"step (\d+)/\d+ loss (\S+)")


@dataclass(frozen=True)
class Training:
    """What one library's training gave."""

    ranks: list[Record]  # as train_gpt.py wrote them, in rank order
    wire: Wire
    idle_share: float  # of all cores
    others_share: float  # of all cores: what programs that are not ours took
    seconds: float  # from start to end of the processes

    def slowest(self, name: str) -> list[int]:
        """Per step, the largest over the ranks."""
        return [max(column) for column in zip(*(rank[name] for rank in self.ranks), strict=True)]

    def lags_ns(self) -> list[list[int]]:
        """Per rank and step, how long after the first rank it began its first AllReduce."""
        first = [min(column) for column in zip(*(rank["began_ns"] for rank in self.ranks), strict=True)]
        return [[own - low for own, low in zip(rank["began_ns"], first, strict=True)] for rank in self.ranks]

    def loss(self) -> list[float]:
        """Per step, the mean over the ranks."""
        return [
            sum(column) / len(column) for column in zip(*(rank["loss"] for rank in self.ranks), strict=True)
        ]


class Place:
    """Where the ranks run: hosts of the lab, or this machine."""

    def __init__(self, ranks: int, lab: Lab | None = None) -> None:
        self.ranks, self.lab = ranks, lab
        self.hosts = lab.hosts if lab else None

    def start(self, rank: int, argv: list[str], port: int, log: Any) -> subprocess.Popen[Any]:
        interface, address = ("eth0", self.hosts.address(0)) if self.hosts else ("lo", "127.0.0.1")
        env = {
            **os.environ,
            **ONE_THREAD,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface,
            "TAILCUT_SOCKET_IFNAME": f"={interface}",
        }
        pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        if self.hosts:
            return self.hosts.spawn(rank, argv, env, **pipes)
        return processes.start(argv, env, **pipes)

    def free_port(self, turn: int) -> int:
        if self.hosts:
            return PORT + turn
        with socket.create_server(("127.0.0.1", 0)) as server:
            return int(server.getsockname()[1])

    def wire(self) -> Wire:
        if self.hosts is None:
            return Wire(loopback_bytes())
        cables = [self.hosts.counters(host) for host in range(self.ranks)]
        drops = sum(cable.queue_drops_in + cable.queue_drops_out for cable in cables)
        return Wire(sum(cable.sent_bytes for cable in cables), drops, sum(self.hosts.drops().values()))


def train(place: Place, backend: str, steps: int, seed: int, progress: Progress) -> Training:
    """Runs the ranks to their end, with a bar; ends the program with what they printed if one fails."""
    task = progress.add_task(f"{backend}: starting", total=steps)
    port = place.free_port(BACKENDS.index(backend))
    before, busy, idle, begin = place.wire(), *processor_times(), time.monotonic()
    others = others_ticks()
    with tempfile.TemporaryDirectory(prefix="tailcut-demo-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        argv = [sys.executable, str(SCRIPT), "--backend", backend, "--steps", str(steps)]
        argv += ["--seed", str(seed), "--record", str(folder)]
        ranks: list[subprocess.Popen[Any]] = []
        stack.callback(processes.end, ranks)
        for rank in range(place.ranks):
            with (folder / f"{rank}.log").open("wb") as log:
                ranks.append(place.start(rank, argv, port, log))
        while any(process.poll() is None for process in ranks):
            if any(process.poll() for process in ranks) or time.monotonic() > begin + PATIENCE_S:
                break
            told = SAID.findall((folder / "0.log").read_text(errors="replace"))
            if told:
                progress.update(
                    task, completed=int(told[-1][0]), description=f"{backend}: loss {told[-1][1]}"
                )
            time.sleep(0.2)
        if any(process.poll() != 0 for process in ranks):
            sys.exit(complaint(backend, ranks, folder))
        progress.update(task, completed=steps)
        records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(place.ranks)]
    seconds, wire = time.monotonic() - begin, place.wire().since(before)
    busy_after, idle_after = processor_times()
    ticks = max(1, busy_after - busy + idle_after - idle)
    others = max(0.0, others_ticks() - others)
    return Training(records, wire, (idle_after - idle) / ticks, others / ticks, seconds)


def others_ticks() -> float:
    """What other programs have had of all cores since boot, plus a constant, while no child of ours lives.

    Without interrupts: those are the kernel's work for the packets of the lab. With what the hypervisor gave
    to other machines.
    """
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, steal = *numbers[:3], numbers[7]
    times = os.times()
    own = times.children_user + times.children_system + times.user + times.system
    return user + nice + system + steal - own * TICKS


def complaint(backend: str, ranks: list[subprocess.Popen[Any]], folder: Path) -> str:
    time.sleep(2)  # seconds for the others to say what they think of it
    ends = {rank: process.poll() for rank, process in enumerate(ranks) if process.poll()}
    who = next(iter(ends), 0)
    said = (folder / f"{who}.log").read_text(errors="replace")[-2_000:]
    state = f"rank and exit status {ends}" if ends else f"no end after {PATIENCE_S} s"
    return f"training on {backend} failed, {state}; rank {who} said:\n{said}"


def record(results: Results, backend: str, training: Training) -> None:
    """As the records of a benchmark of one round, so that `tailcut report` reads them."""
    common = {"contender": backend, "round": 0, "spread_ns": [], "counters": {}, "said": ""}
    common |= {"operations": len(training.ranks[0]["step_ns"]), "idle_share": training.idle_share}
    common |= {"wire": asdict(training.wire), "load_average": os.getloadavg()[0]}
    lags = training.lags_ns()
    results.add("contender", name=backend, variant="", versions={"torch": training.ranks[0]["torch"]})
    results.add("samples", case=STEP, durations_ns=training.slowest("step_ns"), lags_ns=[], **common)
    results.add(
        "samples", case=REDUCING, durations_ns=training.slowest("reducing_ns"), lags_ns=lags, **common
    )
    results.add(
        "training",
        contender=backend,
        loss=training.loss(),
        seconds=training.seconds,
        others_share=training.others_share,
    )


def table(found: dict[str, Training]) -> Sheet:
    """A column for each library."""
    columns = [figures(training) for training in found.values()]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return Sheet("The same training; times are those of the slowest rank", ("", *found), rows)


def figures(training: Training) -> dict[str, str]:
    step, reducing = training.slowest("step_ns"), training.slowest("reducing_ns")
    last = training.loss()[-LAST:]
    tail = "p99" if resolvable(len(step), 0.99) else "slowest"
    agreed = len({rank["digest"] for rank in training.ranks}) == 1
    return {
        "steps per second": f"{len(step) / sum(step) * 1e9:.2f}",
        "step, p50": f"{quantile(step, 0.5) / 1e6:.0f} ms",
        f"step, {tail}": f"{quantile(step, 0.99) / 1e6:.0f} ms",
        "AllReduce in a step, p50": f"{quantile(reducing, 0.5) / 1e6:.0f} ms",
        f"AllReduce in a step, {tail}": f"{quantile(reducing, 0.99) / 1e6:.0f} ms",
        "AllReduce in all, of all steps' time": f"{sum(reducing) / sum(step):.0%}",
        f"loss, mean of the last {len(last)} steps": f"{sum(last) / len(last):.4f}",
        "parameters equal on all ranks": "yes" if agreed else "NO",
        "processors idle": f"{training.idle_share:.0%}",
        "processors busy with other programs": f"{training.others_share:.0%}",
    }


def verdict(found: dict[str, Training]) -> Iterator[str]:
    """In words, also when they do not flatter."""
    for name, q in {"The median AllReduce": 0.5, "The p99 of AllReduce": 0.99}.items():
        gloo, own = (quantile(found[backend].slowest("reducing_ns"), q) for backend in BACKENDS)
        relation = "shorter" if own < gloo else "longer"
        yield f"{name} was {max(own, gloo) / min(own, gloo):.2f} times {relation} on tailcut than on Gloo."
    apart = max(abs(a / b - 1) for a, b in zip(*(one.loss() for one in found.values()), strict=True))
    word = "equal" if apart <= LOSSES_EQUAL else "DIFFERENT"
    yield f"The losses are {word}: at most {apart:.2%} apart in any step (the libraries add in other orders)."
    if max(training.others_share for training in found.values()) > OTHERS_MAX:
        yield "Other programs took much of the processors: repeat this when the machine is idle."
    elif all(training.idle_share < 0.1 for training in found.values()):
        yield "The processors were busy nearly all the time: they, and not the network, set the pace."
    yield "One run each: a demonstration. `tailcut bench` takes turns and says how sure its figures are."


@contextlib.contextmanager
def placed(network: str, ranks: int, seed: int, console: Console) -> Iterator[Place]:
    why_not = missing_tools()
    if network == LOOPBACK or (network == AUTO and why_not):
        reason = f" (the lab does not work here: {why_not})" if network == AUTO else ""
        console.print(f"{ranks} ranks over loopback{reason}", highlight=False)
        yield Place(ranks)
        return
    try:
        scene = scenario.load(SCENARIO if network == AUTO else network, hosts=ranks)
        with open_scenario(scene, seed=seed) as lab, lab.faults(pauses=True):
            where = f"{ranks} ranks, each on a host of its own in the lab's network {scene.name}"
            console.print(f"{where}. {scene.summary}", highlight=False)
            yield Place(ranks, lab)
    except (LabError, ScenarioError) as error:
        sys.exit(f"the lab does not work: {error}")


def show_report(path: Path, console: Console) -> None:
    """The page, where what it is made with is installed."""
    try:
        page.write([digest(path)], path.with_suffix(".html"))
        console.print(f"samples: {path}, report: {path.with_suffix('.html')}", highlight=False)
    except page.Missing as missing:
        console.print(f"samples: {path}; no report: {missing}", highlight=False)


def main(
    network: Annotated[
        str, typer.Option(help=f"{AUTO}, {LOOPBACK}, or a scenario of `tailcut lab list`")
    ] = AUTO,
    steps: Annotated[int, typer.Option(help="of each training")] = 100,
    ranks: Annotated[int, typer.Option(help="processes, each a worker of the training")] = 4,
    seed: Annotated[int, typer.Option(help="of weights, batches and network")] = 1,
    output: Annotated[Path | None, typer.Option(help="JSON lines [default: a new file]")] = None,
) -> None:
    """Trains a small GPT on Gloo, then on tailcut, and compares."""
    if network not in (AUTO, LOOPBACK, *scenario.names()) and not Path(network).exists():
        known = ", ".join((AUTO, LOOPBACK, *scenario.names()))
        raise typer.BadParameter(f"no such network: {network}; there are {known}")
    console = terminal()
    path = output or default_output("demo")
    settings = {"network": network, "steps": steps, "ranks": ranks, "seed": seed}
    found: dict[str, Training] = {}
    with Results(path, "demo", settings) as results:
        with placed(network, ranks, seed, console) as place, Progress(console=console) as progress:
            results.add("place", scenario=place.lab.scenario.name if place.lab else "")
            for backend in BACKENDS:
                found[backend] = train(place, backend, steps, seed, progress)
        elements = found["gloo"].ranks[0]["parameters"]
        for case in (STEP, REDUCING):
            results.add("case", name=case, ranks=ranks, elements=elements, iterations=steps, warmup=0)
        for backend, training in found.items():
            record(results, backend, training)
        summaries(results, "gloo")
    show(table(found), console)
    for sentence in verdict(found):
        console.print(f"- {sentence}", highlight=False)
    show_report(path, console)


if __name__ == "__main__":
    typer.run(main)
