"""A scenario that runs: hosts, traffic, stragglers and faults, and a record of each stretch of time.

with open_scenario("tail-3", seed=7) as lab:
    process = lab.hosts.spawn(rank, command)     # one rank a host
    with lab.cell() as cell:
        ...                                      # measure
    print(cell.record.verdict, cell.record.background_mbit)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailcut.lab import faults, load, scenario
from tailcut.lab.background import Background, Reading
from tailcut.lab.driver import Driver
from tailcut.lab.faults import Event
from tailcut.lab.filters import Filters
from tailcut.lab.hosts import Hosts
from tailcut.lab.load import BUSY_SHARE_MAX, Load
from tailcut.lab.scenario import Port, Scenario
from tailcut.lab.stragglers import lag_ns
from tailcut.lab.system import LabError

VALID = "valid"


@dataclass(frozen=True, slots=True)
class CellRecord:
    """What the lab saw in one stretch of time: what a figure must be read with."""

    seconds: float
    busy_share: float  # of all cores together
    background_mbit: float | None  # its goodput while it was on; None without one, or if it never was on
    background_on_share: float  # of the time
    sent_bytes: int  # on all cables, with Ethernet's headers
    queue_drops: int  # packets that found a queue full
    drops: dict[str, int]  # by the switch on purpose, by reason
    oversize: int  # packets no wire would carry
    faults: tuple[str, ...]  # that happened meanwhile
    verdict: str  # `valid`, or why nothing may be concluded


@dataclass(frozen=True, slots=True)
class _Quick:
    at_ns: int
    load: Load
    background: Reading | None
    faults: int


@dataclass(frozen=True, slots=True)
class _Slow:
    """What takes a command for each host to read."""

    sent_bytes: int
    queue_drops: int
    drops: dict[str, int]
    oversize: int


class Cell:
    """One stretch of time; its record is there when the block has ended."""

    def __init__(self) -> None:
        self._record: CellRecord | None = None

    @property
    def record(self) -> CellRecord:
        if self._record is None:
            raise RuntimeError("a cell has its record when its block has ended")
        return self._record

    def close(self, record: CellRecord) -> None:
        self._record = record


class Lab:
    """What `open_scenario` gives."""

    def __init__(self, scene: Scenario, hosts: Hosts, seed: int, background: Background | None) -> None:
        self.scenario, self.hosts, self.seed = scene, hosts, seed
        self.background = background
        self._driver: Driver | None = None

    def lag_ns(self, operation: int, rank: int) -> int:
        """How late the rank must enter this operation."""
        if self.scenario.stragglers is None:
            return 0
        return lag_ns(self.scenario.stragglers, self.hosts.n, self.seed, operation, rank)

    @contextmanager
    def faults(
        self, *, pauses: bool = False, told: Callable[[Event], None] = lambda event: None
    ) -> Iterator[Driver]:
        """The scenario's faults happen from now on until the block ends.

        pauses: stragglers are paused processes, because nobody calls `lag_ns`.
        """
        timelines = [faults.timeline(self.scenario.faults, self.hosts.n, self.seed)]
        if pauses and self.scenario.stragglers is not None:
            timelines.append(faults.pauses(self.scenario.stragglers, self.hosts.n, self.seed))
        with Driver(self.hosts, timelines, spare=self._spare, told=told) as driver:
            self._driver = driver
            try:
                yield driver
            finally:
                self._driver = None
        if driver.error is not None:
            raise LabError(f"the faults of the scenario ended too early: {driver.error}") from driver.error

    @contextmanager
    def cell(self) -> Iterator[Cell]:
        """Records what happens in the block; nothing when it fails. Reading the counters takes the processor
        for some milliseconds, which are not part of the cell."""
        cell, slow_before = Cell(), self._slow()
        before = self._quick()
        yield cell
        now = self._quick()
        cell.close(self._record((before, slow_before), (now, self._slow())))

    def _spare(self) -> set[int]:
        return set() if self.background is None else self.background.pids()

    def _quick(self) -> _Quick:
        background = None if self.background is None else self.background.read()
        happened = len(self._driver.happened) if self._driver is not None else 0
        return _Quick(time.monotonic_ns(), load.now(), background, happened)

    def _slow(self) -> _Slow:
        cables = [self.hosts.counters(host) for host in range(self.hosts.n)]
        drops = sum(cable.queue_drops_in + cable.queue_drops_out for cable in cables)
        sent = sum(cable.sent_bytes for cable in cables)
        return _Slow(sent, drops, self.hosts.drops(), self.hosts.oversize())

    def _record(self, before: tuple[_Quick, _Slow], now: tuple[_Quick, _Slow]) -> CellRecord:
        (quick_before, slow_before), (quick, slow) = before, now
        mbit, on_share = None, 0.0
        if quick.background is not None and quick_before.background is not None:
            on_share = quick.background.on_share_since(quick_before.background)
            mbit = quick.background.mbit_since(quick_before.background) if on_share else None
        happened = self._driver.happened[quick_before.faults : quick.faults] if self._driver else []
        busy = quick.load.busy_share_since(quick_before.load)
        oversize = slow.oversize - slow_before.oversize
        return CellRecord(
            seconds=(quick.at_ns - quick_before.at_ns) * 1e-9,
            busy_share=busy,
            background_mbit=mbit,
            background_on_share=on_share,
            sent_bytes=slow.sent_bytes - slow_before.sent_bytes,
            queue_drops=slow.queue_drops - slow_before.queue_drops,
            drops={name: count - slow_before.drops[name] for name, count in slow.drops.items()},
            oversize=oversize,
            faults=tuple(map(str, happened)),
            verdict=verdict(busy, oversize),
        )


def verdict(busy_share: float, oversize: int) -> str:
    """`valid`, or the reason why a figure from this stretch of time says nothing about the network."""
    if oversize:
        return f"not like a wire: {oversize} packets above the MTU passed the switch"
    if busy_share > BUSY_SHARE_MAX:
        return f"too busy: the cores were {busy_share:.0%} busy, at most {BUSY_SHARE_MAX:.0%} is a network"
    return VALID


@contextmanager
def open_scenario(what: str | Scenario, *, seed: int = 0) -> Iterator[Lab]:
    """Builds everything a scenario has but for its faults, which wait for `Lab.faults`."""
    scene = scenario.load(what) if isinstance(what, str) else what
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(_hosts(scene, seed))
        for host in range(scene.hosts):
            _set_port(hosts, scene, host)
        background = None
        if scene.background is not None:
            background = stack.enter_context(Background(hosts, scene.background, seed))
        yield Lab(scene, hosts, seed, background)


def _set_port(hosts: Hosts, scene: Scenario, host: int) -> None:
    """As the network has it, but for what this host has otherwise."""
    network = scene.network
    own = {port.host: port for port in scene.ports}.get(host, Port(host))
    hosts.set_port(
        host,
        out_mbit=own.out_mbit or network.rate_mbit,
        in_mbit=own.in_mbit or network.rate_mbit,
        out_queue_bytes=own.out_queue_bytes or network.out_queue_bytes,
        in_queue_bytes=own.in_queue_bytes or network.in_queue_bytes,
    )
    if own.cpu_percent is not None:
        hosts.limit_cpu(host, own.cpu_percent)


def _hosts(scene: Scenario, seed: int) -> Hosts:
    network = scene.network
    return Hosts(
        scene.hosts,
        rate_mbit=network.rate_mbit,
        mtu=network.mtu,
        ipv6=network.ipv6,
        burst_bytes=network.burst_bytes,
        congestion=network.congestion or None,
        probing=network.probing,
        behaviour=Filters(network.mtu, network.path_mtu, network.udp, network.icmp, scene.losses),
        delay=scene.delay,
        seed=seed,
    )
