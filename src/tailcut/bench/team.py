"""A team: the living ranks of one library, started once and measured in many turns."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tailcut.bench import hydra
from tailcut.bench.control import Control, ControlError, Message
from tailcut.lab import Hosts, processes

START_TIMEOUT_S = 120.0  # importing torch four times on two busy cores takes most of it
STOP_TIMEOUT_S = 15.0
FIRST_PORT = 29_600  # in a lab every port is free; teams there count up from here
LOG_TAIL_BYTES = 2_000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class TeamError(RuntimeError):
    """A team that did not start, answered wrong or not in time; the text ends with what its ranks printed."""

    def __init__(self, text: str, wrong_elements: int = 0) -> None:
        super().__init__(text)
        self.wrong_elements = wrong_elements  # of the first wrong result, on the first rank that had one


@dataclass(frozen=True, slots=True)
class Peer:
    """How the ranks of one library are started."""

    name: str
    communicator: Path  # Python file with `connect`
    launcher: tuple[
        str, ...
    ] = ()  # an mpiexec with its options, before `-n SIZE`; empty: we start every rank
    env: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()  # where its own packages stand, before all others
    congestion: str = ""  # TCP's congestion control in a lab; empty: as the lab has it
    dtypes: tuple[str, ...] = ()  # what it can reduce; empty: all that we can
    hydra: bool = False  # its launcher is Hydra, which can be led onto the hosts of a lab


@dataclass(frozen=True, slots=True)
class Wire:
    """What the network has counted since it began: loopback everyone's bytes, a lab its own."""

    sent_bytes: int
    queue_drops: int = 0  # packets a full queue had no room for
    lost: int = 0  # packets the lab lost on purpose

    def since(self, before: Wire) -> Wire:
        return Wire(
            self.sent_bytes - before.sent_bytes,
            self.queue_drops - before.queue_drops,
            self.lost - before.lost,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """What one order to measure gave."""

    durations_ns: list[int]  # per operation, the longest over the ranks, from its barrier to its end
    transfers_ns: list[int]  # per operation, from the last rank's start to the last end: without the lags
    spread_ns: list[int]  # per operation, between the first and the last rank to leave the barrier
    lags_ns: list[list[int]]  # per rank and operation, how long after the first rank it left the barrier
    operations: int  # warm-up included, as in all that follows
    wire: Wire  # what the network counted meanwhile
    counters: dict[str, int]  # what the library counted, summed over ranks
    said: str  # what rank 0's library said of the last operation
    idle_share: float  # of all cores together: near 0 the processor was the limit, not the network


class Team:
    """Starts the ranks; `close` ends them. On loopback, or on the hosts of a lab, rank i on host i."""

    _serial = 0

    def __init__(self, peer: Peer, size: int, hosts: Hosts | None = None) -> None:
        if peer.launcher and not peer.hydra and hosts is not None:
            raise ValueError(f"{peer.name} has a launcher of its own, which knows nothing of a lab")
        if hosts is not None and hosts.n < size:
            raise ValueError(f"{size} ranks need {size} hosts, the lab has {hosts.n}")
        self.peer, self.size, self._hosts = peer, size, hosts
        self._folder = Path(tempfile.mkdtemp(prefix="tailcut-bench-"))
        self._control = Control(self._folder / "control", size)
        self._processes: list[subprocess.Popen[Any]] = []
        self._broken = False
        if hosts is not None:
            hosts.set_congestion(peer.congestion or hosts.congestion)
        try:
            with (self._folder / "log").open("wb") as log:
                self._start(log)
            self.versions: dict[str, str] = self._greetings()[0]["versions"]
        except (ControlError, OSError) as error:
            text = self._complaint(error)
            self._broken = True
            self.close()
            raise TeamError(text) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, order: Message, timeout_s: float) -> list[Message]:
        """Gives an order to all ranks; a rank that fails, lies or hangs is a TeamError."""
        try:
            answers = self._control.ask(order, timeout_s)
        except ControlError as error:
            self._broken = True
            raise TeamError(self._complaint(error)) from error
        for rank, answer in enumerate(answers):
            if answer["wrong"]:
                self._broken = True
                text = f"{self.peer.name}: rank {rank} has a wrong result: {answer['wrong']}"
                raise TeamError(text, answer["wrong_elements"])
        return answers

    def measure(
        self,
        elements: int,
        *,
        iterations: int,
        warmup: int,
        variant: str = "",
        seed: int = 0,
        timeout_s: float = 120.0,
        dtype: str = "float32",
        op: str = "sum",
        lags_ns: Sequence[Sequence[int]] = (),
    ) -> Turn:
        """lags_ns: per operation, warm-up included, how late each rank has to be."""
        order = {"do": "measure", "elements": elements, "iterations": iterations, "warmup": warmup}
        order |= {"variant": variant, "seed": seed, "dtype": dtype, "op": op}
        if lags_ns:
            order["lags_ns"] = lags_ns
        before, busy_before, idle_before = self.wire(), *processor_times()
        answers = self.ask(order, timeout_s)
        wire, busy, idle = self.wire().since(before), *processor_times()
        idle_share = (idle - idle_before) / max(1, busy - busy_before + idle - idle_before)
        starts = [answer["starts_ns"] for answer in answers]
        ends = [answer["ends_ns"] for answer in answers]
        durations = [
            max(end[i] - start[i] for start, end in zip(starts, ends, strict=True)) for i in range(iterations)
        ]
        transfers = [
            max(end) - max(start)
            for start, end in zip(zip(*starts, strict=True), zip(*ends, strict=True), strict=True)
        ]
        spread = [max(column) - min(column) for column in zip(*starts, strict=True)]
        first = [min(column) for column in zip(*starts, strict=True)]
        lags = [[mine - own for mine, own in zip(start, first, strict=True)] for start in starts]
        counters = {
            name: sum(answer["counters"][name] for answer in answers) for name in answers[0]["counters"]
        }
        said = answers[0]["said"]
        return Turn(durations, transfers, spread, lags, warmup + iterations, wire, counters, said, idle_share)

    def wire(self) -> Wire:
        if self._hosts is None:
            return Wire(loopback_bytes())
        cables = [self._hosts.counters(host) for host in range(self._hosts.n)]
        drops = sum(cable.queue_drops_in + cable.queue_drops_out for cable in cables)
        return Wire(sum(cable.sent_bytes for cable in cables), drops, self._hosts.lost())

    def close(self) -> None:
        self._control.close()
        deadline = time.monotonic() + (0.5 if self._broken else STOP_TIMEOUT_S)
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _end_group(process)
        self._processes.clear()
        for path in self._folder.glob("*"):
            path.unlink()
        with contextlib.suppress(FileNotFoundError):
            self._folder.rmdir()

    # -- starting ----------------------------------------------------------------------------------------

    def _start(self, log: Any) -> None:
        interface, host, port = "lo", "127.0.0.1", 0
        if self._hosts is not None:
            Team._serial += 1
            interface, host, port = "eth0", self._hosts.address(0), FIRST_PORT + Team._serial
        elif not self.peer.launcher:
            port = _free_port(host)
        command = [sys.executable, "-m", "tailcut.bench.rank", "--control", str(self._control.path)]
        command += ["--communicator", str(self.peer.communicator), "--size", str(self.size)]
        path = os.pathsep.join([*self.peer.python_path, *(entry for entry in sys.path if entry)])
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": path, **self.peer.env}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        if self.peer.launcher and self._hosts is not None:
            there = hydra.options(self._hosts, self.size, self._folder)
            argv = [*self.peer.launcher, *there, "-n", str(self.size), *command]
            env |= hydra.ENVIRONMENT
            self._processes.append(self._hosts.spawn(0, argv, env, start_new_session=True, **pipes))
            return
        if self.peer.launcher:
            argv = [*self.peer.launcher, "-n", str(self.size), *command]
            self._processes.append(processes.start(argv, env, start_new_session=True, **pipes))
            return
        for rank in range(self.size):
            argv = [
                *command,
                "--rank",
                str(rank),
                "--host",
                host,
                "--port",
                str(port),
                "--interface",
                interface,
            ]
            if self._hosts is not None:
                process = self._hosts.spawn(rank, argv, env, start_new_session=True, **pipes)
            else:
                process = processes.start(argv, env, start_new_session=True, **pipes)
            self._processes.append(process)

    def _greetings(self) -> list[Message]:
        """Waits for all ranks, but not for those whose process has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (greetings := self._control.accept(0.2)) is None:
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                missing = self._control.missing()
                raise ControlError(f"ranks {missing} did not come up", missing)
        return greetings

    def _complaint(self, error: Exception) -> str:
        log = self._folder / "log"
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
        codes = [process.poll() for process in self._processes]
        state = f"exit statuses {codes}" if any(code is not None for code in codes) else "all processes live"
        return f"{self.peer.name}: {error} ({state}){': ' + tail.strip() if tail.strip() else ''}"


def loopback_bytes() -> int:
    """Bytes sent over loopback since boot, everyone's."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise TeamError("/proc/net/dev lists no loopback interface")


def processor_times() -> tuple[int, int]:
    """Ticks of all cores since boot: busy (with what the hypervisor took away) and idle."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, idle


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def _end_group(process: subprocess.Popen[Any]) -> None:
    """Ends a process and all it started (it leads a session of its own)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
            return
