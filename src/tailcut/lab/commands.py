"""`tailcut lab`: what can be done with labs from a shell."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tailcut.lab import leftovers, privileges, scenario
from tailcut.lab.fields import ScenarioError
from tailcut.lab.job import End, Job, printer
from tailcut.lab.opened import VALID, CellRecord, open_scenario
from tailcut.lab.scenario import Scenario
from tailcut.lab.system import LabError, entering

app = typer.Typer(no_args_is_help=True, help="Hosts on this machine, with the network of a bad day.")

STATUS_TIMEOUT = 124  # as `timeout` of coreutils
STATUS_INTERRUPTED = 130
Name = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="a name from `tailcut lab list`, or a .toml file")
]
Count = Annotated[int | None, typer.Option(help="hosts, instead of the scenario's number")]


@app.command("list")
def list_() -> None:
    """The scenarios that come with tailcut, and what each models."""
    table = Table(box=None, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("hosts", justify="right")
    table.add_column("what it models")
    for name in scenario.names():
        scene = scenario.load(name)
        table.add_row(name, str(scene.hosts), scene.summary)
    Console().print(table)


@app.command()
def show(name: Name) -> None:
    """The scenario's file, as a start for one of your own; checked."""
    _load(name, None)
    print(scenario.source(name), end="")


@app.command()
def run(
    name: Name,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="runs once on every host")],
    hosts: Count = None,
    seed: Annotated[int, typer.Option(help="of everything random in the scenario")] = 0,
    timeout_s: Annotated[float | None, typer.Option(help="end the job after so many seconds")] = None,
) -> None:
    """Runs a command on every host, with RANK, WORLD_SIZE, MASTER_ADDR and so on set.

    Ends with the worst exit status of the ranks; one that a fault of the scenario killed does not count.
    """
    scene = _load(name, hosts)
    _become_able()
    say = printer(colour=sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))
    try:
        with open_scenario(scene, seed=seed) as lab:
            say("lab", f"{scene.name}, {scene.hosts} hosts, seed {seed}: {scene.summary}".encode())
            if privileges.in_own_world():
                say("lab", _way_in(lab.hosts.namespace(0)).encode())
            with lab.cell() as cell:
                end = Job(lab, command, say).run(timeout_s)
    except KeyboardInterrupt:
        say("lab", b"interrupted: every rank has been ended")
        raise typer.Exit(STATUS_INTERRUPTED) from None
    except LabError as error:
        _fail(str(error))
    for line in _closing(end, cell.record):
        say("lab", line.encode())
    raise typer.Exit(STATUS_TIMEOUT if end.timed_out else end.status)


@app.command()
def shell(
    host: Annotated[int, typer.Argument(help="its number, from 0")],
    lab: Annotated[str, typer.Option(help="which lab, when several run: its process's number")] = "",
) -> None:
    """A shell on a host of a lab that runs now."""
    if privileges.lacking():
        _fail("the lab of an ordinary user is a world of its own: `tailcut lab run` says how to get in")
    running = sorted(
        {name.rsplit("-", 1)[0] for name in leftovers.namespaces() if leftovers.owner_lives(name)}
    )
    running = [prefix for prefix in running if not lab or prefix.split("-")[1] == lab]
    if not running:
        _fail("no lab is running; start one in another terminal: tailcut lab run clean -- sleep 3600")
    if len(running) > 1:
        _fail(f"several labs are running: choose with --lab {' or '.join(p.split('-')[1] for p in running)}")
    namespace = f"{running[0]}-h{host}"
    if namespace not in leftovers.namespaces():
        _fail(f"host {host} is not in this lab")
    words = [*entering(namespace), os.environ.get("SHELL", "/bin/sh")]
    os.execvpe(words[0], words, {**os.environ, "PS1": f"host{host}$ "})


@app.command()
def clean() -> None:
    """Removes what labs have left behind that were killed with SIGKILL."""
    _become_able()
    removed = leftovers.clean()
    print("\n".join(["removed:", *removed]) if removed else "nothing was left behind")


def _way_in(namespace: str) -> str:
    """Its networks are visible only from inside, so `tailcut lab shell` cannot find them."""
    inside = " ".join(entering(namespace))
    return f"a shell on host 0: nsenter -t {os.getpid()} -U -m --preserve-credentials {inside} sh"


def _closing(end: End, record: CellRecord) -> list[str]:
    """What is worth saying when the ranks have ended."""
    lines = [
        f"rank {rank} was killed by the scenario; its exit status does not count" for rank in end.excused
    ]
    lines += [
        f"rank {rank} ended with {status}"
        for rank, status in enumerate(end.statuses)
        if status and rank not in end.excused
    ]
    if end.timed_out:
        lines.append("the time was over: every rank has been ended")
    drops = ", ".join(f"{count} {name}" for name, count in record.drops.items() if count) or "none"
    text = f"{record.seconds:.1f} s, cores {record.busy_share:.0%} busy, dropped in the switch: {drops}"
    text += f", queues full for {record.queue_drops} packets"
    if record.background_mbit is not None:
        text += f", background {record.background_mbit:.1f} Mbit/s"
    lines.append(text)
    if record.verdict != VALID:
        lines.append(f"draw no conclusions from times: {record.verdict}")
    return lines


def _load(name: str, hosts: int | None) -> Scenario:
    try:
        return scenario.load(name, hosts=hosts)
    except ScenarioError as error:
        _fail(str(error))


def _become_able() -> None:
    """Goes on as root of its own user namespace where it must; ends with the remedy where it cannot."""
    try:
        privileges.become_able()
    except LabError as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    print(f"tailcut lab: {text}", file=sys.stderr)
    raise typer.Exit(2)
