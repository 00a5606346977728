"""Runs a function on n processes, one per rank, with a deadline; what came of it returns by rank.

    def add(place: Place, dtype: str) -> list[float]:       # at module level: processes import it
        with place.connect() as group:
            ...

    values = ranks.run(add, 4, "float32")                   # fails with the first failure and its rank
    reports = ranks.reports(add, 4, "float32")              # where failures are what the test is about
    values = ranks.run(add, 4, "float32", hosts=hosts)      # each rank on a host of a tailcut.lab.Hosts
    with ranks.Ranks(add, 4, "float32") as running:         # where the test does something meanwhile
        os.kill(running.pids[2], signal.SIGKILL)
        reports = running.wait(20)

Processes are forked from a small server that has numpy and tailcut loaded, so starting four takes some ten
milliseconds. Only processes started here are ever killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tailcut.group import Group
    from tailcut.lab import Hosts

TIMEOUT_S = 30.0  # for all ranks together; below the 60 s after which pytest gives up on a test
GRACE_S = 5.0  # for the other ranks once one has failed
LAB_PORT = 29511  # of the rendezvous on a host of the lab, where nobody else is
_CLONE_NEWNET = 0x40000000  # from <linux/sched.h>
LOG_TAIL = 4000  # characters of a rank's output that a failure shows

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["numpy", "tailcut", "ranks"])


@dataclass(frozen=True)
class Place:
    """Where a process stands: what a rank needs to know to join the others."""

    rank: int
    size: int
    rendezvous: str

    def connect(self, **settings: Any) -> Group:
        """A group of all ranks; settings are fields of tailcut.Config."""
        import tailcut

        return tailcut.connect(
            rank=self.rank, size=self.size, rendezvous=self.rendezvous, config=tailcut.Config(**settings)
        )


class Died(Exception):
    """A rank's process ended without a word."""


class Hung(Exception):
    """A rank had not ended at the deadline; the text holds the stacks of its threads."""


@dataclass
class Report:
    """What came of one rank: a value, or an error."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    output: str = ""  # the end of what it wrote to stdout and stderr
    ended_s: float = 0.0  # seconds after the start of all ranks
    exit_code: int | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None

    def text(self) -> str:
        """For people: how it ended and what it wrote."""
        if not self.failed:
            return f"rank {self.rank} ended well after {self.ended_s:.1f} s"
        parts = [
            f"rank {self.rank} failed after {self.ended_s:.1f} s: {type(self.error).__name__}: {self.error}"
        ]
        parts += [self.trace] if self.trace else []
        parts += [f"---- it wrote:\n{self.output}"] if self.output.strip() else []
        return "\n".join(parts)


def run(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
    hosts: Hosts | None = None,
) -> list[Any]:
    """What `function(place, *args)` returned, by rank. Fails with the first failure in time."""
    ended = reports(function, size, *args, timeout_s=timeout_s, grace_s=GRACE_S, environ=environ, hosts=hosts)
    failed = [report for report in ended if report.failed]
    if failed:
        failed.sort(key=lambda report: (isinstance(report.error, Hung), report.ended_s))
        others = [f"rank {each.rank}: {type(each.error).__name__}: {each.error}"[:500] for each in failed[1:]]
        raise AssertionError("\n".join([failed[0].text(), *others]))
    return [report.value for report in ended]


def reports(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    timeout_s: float = TIMEOUT_S,
    grace_s: float | None = None,
    environ: Mapping[str, str] | None = None,
    hosts: Hosts | None = None,
) -> list[Report]:
    """What came of every rank. With `grace_s`, ranks have so long to end once one has failed."""
    with Ranks(function, size, *args, environ=environ, hosts=hosts) as running:
        return running.wait(timeout_s, grace_s=grace_s)


@dataclass
class _Running:
    process: BaseProcess
    pipe: connection.Connection
    output: Path
    report: Report
    ended: bool = False


class Ranks:
    """Processes that run a function, started on construction; leaving the context kills what still runs."""

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        *args: Any,
        environ: Mapping[str, str] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._held = contextlib.ExitStack()
        self._running: list[_Running] = []
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="ranks-")))
        namespaces = [hosts.namespace(rank) if hosts else "" for rank in range(size)]
        if hosts:
            family = 6 if hosts.ipv6 else 4
            self.rendezvous = f"tcp://{bracketed(hosts.address(0, family=family))}:{LAB_PORT}"
        else:
            self.rendezvous = f"tcp://127.0.0.1:{self._held.enter_context(reserved_port())}"
        settings = {name: text for name, text in os.environ.items() if name.startswith("TAILCUT_")}
        settings.update(environ or {})
        self._started = time.monotonic()
        for rank in range(size):
            ours, theirs = _context.Pipe(duplex=False)
            output = folder / f"rank{rank}"
            output.touch()
            place = Place(rank, size, self.rendezvous)
            process = _context.Process(
                target=_main,
                args=(theirs, str(output), place, namespaces[rank], settings, function, args),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._running.append(_Running(process, ours, output, Report(rank)))

    @property
    def pids(self) -> list[int]:
        found = [each.process.pid for each in self._running if each.process.pid is not None]
        assert len(found) == len(self._running)  # never hand out something that kill() takes for a group
        return found

    def await_output(self, word: str, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until every rank has written the word to its stdout or stderr."""
        deadline = time.monotonic() + timeout_s
        while not all(word in each.output.read_text(errors="replace") for each in self._running):
            assert time.monotonic() < deadline, f"not every rank wrote {word!r} within {timeout_s} s"
            time.sleep(0.01)

    def wait(self, timeout_s: float = TIMEOUT_S, grace_s: float | None = None) -> list[Report]:
        """Waits until all ranks have ended; who has not by then is asked for its stacks and killed."""
        deadline = time.monotonic() + timeout_s
        while left := [each for each in self._running if not each.ended]:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._expose(left)
                break
            for ready in connection.wait([each.pipe for each in left], timeout=remaining):
                each = next(each for each in left if each.pipe is ready)
                self._collect(each)
                if each.report.failed and grace_s is not None:
                    deadline = min(deadline, time.monotonic() + grace_s)
        for each in self._running:
            each.process.join(5.0)
            each.report.exit_code = each.process.exitcode
            each.report.output = _tail(each.output)
        return [each.report for each in self._running]

    def _collect(self, each: _Running) -> None:
        """The rank has said how it ended, or is gone."""
        report = each.report
        report.ended_s = time.monotonic() - self._started
        each.ended = True
        try:
            report.value, report.error, report.trace = pickle.loads(each.pipe.recv_bytes())
        except EOFError:
            each.process.join(5.0)
            report.error = Died(f"the process ended with code {each.process.exitcode}")

    def _expose(self, left: list[_Running]) -> None:
        for each in left:
            _signal(each.process, signal.SIGCONT)  # it may be stopped
            _signal(each.process, signal.SIGUSR1)
        time.sleep(0.5)
        for each in left:
            each.report.ended_s = time.monotonic() - self._started
            each.report.error = Hung(
                f"still running after {each.report.ended_s:.1f} s, its stacks are in its output"
            )
            each.ended = True
            each.process.kill()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            if each.process.is_alive():
                each.process.kill()
            each.process.join(5.0)
            each.pipe.close()
        self._held.close()


def _signal(process: BaseProcess, number: int) -> None:
    if process.is_alive() and process.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _tail(output: Path) -> str:
    return output.read_text(errors="replace")[-LOG_TAIL:]


def _main(
    pipe: connection.Connection,
    output: str,
    place: Place,
    namespace: str,
    settings: dict[str, str],
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """In the rank's process."""
    with open(output, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    for name in [name for name in os.environ if name.startswith("TAILCUT_")]:
        del os.environ[name]  # the fork server's, from whenever it was started
    os.environ.update(settings)
    if namespace:
        _enter(namespace)
    value, error, trace = None, None, ""
    try:
        value = function(place, *args)
    except BaseException as failure:
        error, trace = failure, traceback.format_exc()
    sys.stdout.flush()
    pipe.send_bytes(_packed(value, error, trace))
    pipe.close()
    atexit._run_exitfuncs()  # processes of a fork server skip it, those of users do not


def _enter(namespace: str) -> None:
    """Moves this process, which has one thread yet, into a network namespace."""
    with open(f"/run/netns/{namespace}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def bracketed(host: str) -> str:
    """A host as it stands in an address: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def _packed(value: Any, error: BaseException | None, trace: str) -> bytes:
    try:
        content = pickle.dumps((value, error, trace))
        pickle.loads(content)  # some exceptions can be written but not read
        return content
    except Exception as failure:
        what = f"{type(error).__name__}: {error}" if error else f"its value cannot travel: {failure}"
        return pickle.dumps((None, RuntimeError(what), trace))


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6 loopback")


@contextlib.contextmanager
def reserved_port(host: str = "127.0.0.1") -> Iterator[int]:
    """A free TCP port that nobody is given by chance meanwhile: it stays bound, but does not listen.

    A second socket with SO_REUSEADDR may bind and listen there, and whoever asks for any port gets another.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        yield int(held.getsockname()[1])


# ---- ranks that are threads of this process, for what needs no processes


@dataclass
class ThreadGather:
    """An all-gather of bytes between threads of one process."""

    size: int
    timeout_s: float = 10.0
    _barrier: threading.Barrier = field(init=False)
    _said: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._barrier = threading.Barrier(self.size)

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def all_gather(payload: bytes) -> list[bytes]:
            self._said[rank] = payload
            self._barrier.wait(self.timeout_s)
            said = [self._said[each] for each in range(self.size)]
            self._barrier.wait(self.timeout_s)
            return said

        return all_gather


def run_threads(function: Callable[[int], Any], size: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """What `function(rank)` returned or raised, by rank, each in a thread of its own."""
    results: list[Any] = [Hung("still running")] * size

    def body(rank: int) -> None:
        try:
            results[rank] = function(rank)
        except BaseException as failure:
            results[rank] = failure

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return results
