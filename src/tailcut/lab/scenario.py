"""A scenario: what a network does to a job, as one frozen value read from a small TOML file.

    scenario = load("lossy-1")              # one of those that come with tailcut
    scenario = load("my-network.toml")      # or a file; docs/reference/scenarios.md lists every field

Everything random in it comes from a seed that is given when the lab is opened.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from tailcut.lab.fields import ScenarioError, Table

HOSTS_MAX = 250
RATE_MBIT_MAX = 100_000.0
QUEUE_BYTES_MAX = 1 << 30
HOUR_S = 3_600.0
DIRECTIONS = ("both", "in", "out")
DISTRIBUTIONS = ("constant", "exponential", "pareto", "lognormal", "trace")
FAULTS = ("kill", "pause", "link", "cut")


@dataclass(frozen=True, slots=True)
class Network:
    """What all cables and the switch have in common; `ports` may differ from it."""

    rate_mbit: float | None = 250.0  # of each port in each direction; None: as fast as the machine
    out_queue_bytes: int = 500_000  # of a host's own shaper: 16 ms at 250 Mbit/s
    in_queue_bytes: int = 500_000  # of the switch's port towards a host
    burst_bytes: int = 3_900  # what a shaper lets pass at once
    mtu: int = 1500  # of the hosts' interfaces
    path_mtu: int | None = None  # larger packets vanish in the switch, without a word
    ipv6: bool = False  # hosts have IPv6 addresses beside IPv4's
    udp: bool = True  # False: the switch drops all UDP
    icmp: bool = True  # False: the switch drops all ICMP, "too big" included
    congestion: str = (
        "cubic"  # TCP's congestion control, for all machines alike; empty: as the machine has it
    )
    probing: bool = False  # TCP finds the path's MTU by itself (tcp_mtu_probing)


@dataclass(frozen=True, slots=True)
class Port:
    """How one host differs; None: as the network has it. `out` is away from the host, `in` towards it."""

    host: int
    out_mbit: float | None = None
    in_mbit: float | None = None
    out_queue_bytes: int | None = None
    in_queue_bytes: int | None = None
    cpu_percent: float | None = None  # of one core, for all processes on the host


@dataclass(frozen=True, slots=True)
class Loss:
    """Random loss in the switch. With bursts each path (from one host to another) is by itself good or bad
    (Gilbert and Elliott): in the bad state every packet is lost, `burst_packets` in the mean, for at most
    50 ms."""

    percent: float
    burst_packets: float = 1.0  # 1: each packet by itself
    hosts: tuple[int, ...] = ()  # whose cables; empty: everyone's
    direction: str = "both"  # in: towards these hosts; out: away from them


@dataclass(frozen=True, slots=True)
class Delay:
    """How far apart the hosts are: the same for all pairs."""

    round_trip_ms: float
    jitter_ms: float = 0.0  # standard deviation of one way; packets of a path keep their order
    reorder_percent: float = 0.0  # of packets that are late by reorder_ms, so that others overtake them
    reorder_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Background:
    """Other people's traffic: TCP rings between two of the hosts, endless or in bursts."""

    members: int  # of the ring: even ones on the first host, odd ones on the second
    hosts: tuple[int, int] = (0, 1)
    message_bytes: int = 8_192_000  # what a member sends to the next before it waits for the one before it
    on_ms: float = 0.0  # mean length of a burst, exponential; 0: endless
    off_ms: float = 0.0  # mean pause between bursts
    rate_mbit: float | None = None  # of each direction, paced; None: whatever TCP takes


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Who enters operations late, how often and by how much."""

    distribution: str
    lag_ms: float = 0.0  # the mean; of a trace its unit
    shape: float = 0.0  # pareto: tail index (above 1); lognormal: sigma
    trace_ms: tuple[float, ...] = ()  # lags one after the other, around in a circle
    hosts: tuple[int, ...] = ()  # always these; empty: someone else in every operation
    percent: float = 100.0  # of operations that have a straggler
    second_percent: float = 0.0  # of those that have two
    every_ms: float = 250.0  # `lab run` knows no operations: it pauses (SIGSTOP) a process this often


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, once or again and again."""

    kind: str  # kill (SIGKILL) | pause (SIGSTOP) | link (cable out) | cut (one way only)
    at_s: float  # after the start
    host: int | None = None  # None: someone, by the seed
    to: int | None = None  # of a cut: the host that is no longer reached; None: nobody is
    for_s: float | None = None  # then it ends: continues, is started again, link up. None: never
    every_s: float | None = None  # again after so long
    spread_s: float = 0.0  # each time earlier or later by up to this


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    summary: str  # one sentence: what it models
    hosts: int
    network: Network = Network()
    ports: tuple[Port, ...] = ()
    losses: tuple[Loss, ...] = ()
    delay: Delay | None = None
    background: Background | None = None
    stragglers: Stragglers | None = None
    faults: tuple[Fault, ...] = ()


def names() -> list[str]:
    """The scenarios that come with tailcut."""
    return sorted(entry.name[:-5] for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def source(name: str) -> str:
    """The text of the scenario's file: one of ours by its name, any other by its path."""
    if name in names():
        return (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise ScenarioError(f"no scenario {name!r}: give a .toml file or one of {', '.join(names())}")
    return path.read_text(encoding="utf-8")


def load(name: str, *, hosts: int | None = None) -> Scenario:
    """hosts: instead of the number in the file; it must still have every host that the file names."""
    text = source(name)
    path = Path(name)
    file = name if path.suffix == ".toml" else f"{name}.toml"
    return parse(text, file, folder=path.parent, hosts=hosts)


def parse(text: str, file: str, *, folder: Path | None = None, hosts: int | None = None) -> Scenario:
    """A scenario from the text of its file; ScenarioError names the field that is wrong."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values = toml.loads(text)
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    top = Table(file, "", values if hosts is None else {**values, "hosts": hosts})
    n = top.integer("hosts", None, 2, HOSTS_MAX)
    scenario = Scenario(
        name=Path(file).stem,
        summary=top.text("summary", None),
        hosts=n,
        network=_network(top.table("network") or Table(file, "network", {})),
        ports=tuple(_port(table, n) for table in top.tables("port")),
        losses=tuple(_loss(table, n) for table in top.tables("loss")),
        delay=_delay(top.table("delay")),
        background=_background(top.table("background"), n),
        stragglers=_stragglers(top.table("stragglers"), n, folder or Path()),
        faults=tuple(_fault(table, n) for table in top.tables("fault")),
    )
    top.finish()
    ports = [port.host for port in scenario.ports]
    if len(set(ports)) != len(ports):
        raise top.wrong("port", f"a host has two: {ports}")
    network = scenario.network
    if network.burst_bytes < network.mtu + 14:
        raise top.wrong("network.burst_bytes", f"lets no full packet pass: {network.mtu + 14} do")
    return scenario


def _network(table: Table) -> Network:
    default = Network()
    network = Network(
        rate_mbit=table.number("rate_mbit", default.rate_mbit, 0, RATE_MBIT_MAX) or None,
        out_queue_bytes=table.integer("out_queue_bytes", default.out_queue_bytes, 1_514, QUEUE_BYTES_MAX),
        in_queue_bytes=table.integer("in_queue_bytes", default.in_queue_bytes, 1_514, QUEUE_BYTES_MAX),
        burst_bytes=table.integer("burst_bytes", default.burst_bytes, 590, QUEUE_BYTES_MAX),
        mtu=table.integer("mtu", default.mtu, 576, 65_535),
        path_mtu=table.maybe_integer("path_mtu", 576, 65_535),
        ipv6="ipv6" in table.texts("addresses", ("ipv4",), ("ipv4", "ipv6")),
        udp=table.flag("udp", True),
        icmp=table.flag("icmp", True),
        congestion=table.text("congestion", default.congestion),
        probing=table.flag("probing", False),
    )
    table.finish()
    return network


def _port(table: Table, n: int) -> Port:
    port = Port(
        host=table.integer("host", None, 0, n - 1),
        out_mbit=table.maybe_number("out_mbit", 0.1, RATE_MBIT_MAX),
        in_mbit=table.maybe_number("in_mbit", 0.1, RATE_MBIT_MAX),
        out_queue_bytes=table.maybe_integer("out_queue_bytes", 1_514, QUEUE_BYTES_MAX),
        in_queue_bytes=table.maybe_integer("in_queue_bytes", 1_514, QUEUE_BYTES_MAX),
        cpu_percent=table.maybe_number("cpu_percent", 1, 100_000),
    )
    table.finish()
    return port


def _loss(table: Table, n: int) -> Loss:
    loss = Loss(
        percent=table.number("percent", None, 0, 100),
        burst_packets=table.number("burst_packets", 1.0, 1, 10_000),
        hosts=table.hosts("hosts", (), n),
        direction=table.text("direction", "both", DIRECTIONS),
    )
    if loss.burst_packets > 1 and loss.percent > 90:
        raise table.wrong("percent", "with bursts must be at most 90")
    table.finish()
    return loss


def _delay(table: Table | None) -> Delay | None:
    if table is None:
        return None
    delay = Delay(
        round_trip_ms=table.number("round_trip_ms", None, 0.1, 2_000),
        jitter_ms=table.number("jitter_ms", 0.0, 0, 1_000),
        reorder_percent=table.number("reorder_percent", 0.0, 0, 100),
        reorder_ms=table.number("reorder_ms", 0.0, 0, 1_000),
    )
    if delay.reorder_percent and not delay.reorder_ms:
        raise table.wrong("reorder_ms", "is missing: by how much are packets late that others overtake?")
    table.finish()
    return delay


def _background(table: Table | None, n: int) -> Background | None:
    if table is None:
        return None
    members = table.integer("members", None, 2, 256)
    if members % 2:
        raise table.wrong("members", f"must be even: half of the ring on each host; not {members}")
    hosts = table.hosts("hosts", (0, 1), n)
    if len(hosts) != 2:
        raise table.wrong("hosts", f"must be two hosts, not {list(hosts)}")
    on_ms, off_ms = table.number("on_ms", 0.0, 0, 1e7), table.number("off_ms", 0.0, 0, 1e7)
    if bool(on_ms) != bool(off_ms):
        raise table.wrong("on_ms", "and off_ms go together")
    background = Background(
        members=members,
        hosts=(hosts[0], hosts[1]),
        message_bytes=table.integer("message_bytes", 8_192_000, 1_000, 1 << 30),
        on_ms=on_ms,
        off_ms=off_ms,
        rate_mbit=table.maybe_number("rate_mbit", 0.1, RATE_MBIT_MAX),
    )
    table.finish()
    return background


def _stragglers(table: Table | None, n: int, folder: Path) -> Stragglers | None:
    if table is None:
        return None
    distribution = table.text("distribution", None, DISTRIBUTIONS)
    lowest_shape = {"pareto": 1.01, "lognormal": 0.01}.get(distribution)
    stragglers = Stragglers(
        distribution=distribution,
        lag_ms=table.number("lag_ms", 1.0 if distribution == "trace" else None, 0, 1e6),
        shape=table.number("shape", None, lowest_shape, 100.0) if lowest_shape else 0.0,
        trace_ms=_trace(table, folder) if distribution == "trace" else (),
        hosts=table.hosts("hosts", (), n),
        percent=table.number("percent", 100.0, 0, 100),
        second_percent=table.number("second_percent", 0.0, 0, 100),
        every_ms=table.number("every_ms", 250.0, 1, 1e7),
    )
    table.finish()
    return stragglers


def _trace(table: Table, folder: Path) -> tuple[float, ...]:
    """A text file beside the scenario's, one lag in a line."""
    path = folder / table.text("trace", None)
    try:
        lags = tuple(float(word) for word in path.read_text(encoding="utf-8").split())
    except (OSError, ValueError) as error:
        raise table.wrong("trace", str(error)) from error
    if not lags or any(not 0 <= lag < 1e6 for lag in lags):
        raise table.wrong("trace", f"{path} must hold lags of 0 to 1,000,000, one in a line")
    return lags


def _fault(table: Table, n: int) -> Fault:
    kind = table.text("kind", None, FAULTS)
    fault = Fault(
        kind=kind,
        at_s=table.number("at_s", None, 0, HOUR_S),
        host=table.maybe_integer("host", 0, n - 1),
        to=table.maybe_integer("to", 0, n - 1),
        for_s=table.maybe_number("for_s", 0.001, HOUR_S),
        every_s=table.maybe_number("every_s", 0.01, HOUR_S),
        spread_s=table.number("spread_s", 0.0, 0, HOUR_S),
    )
    if fault.to is not None and kind != "cut":
        raise table.wrong("to", f"only a cut has it, not a {kind}")
    if fault.to is not None and fault.to == fault.host:
        raise table.wrong("to", "is the host itself")
    if fault.every_s is not None and (fault.for_s is None or fault.for_s >= fault.every_s):
        raise table.wrong("every_s", "needs a for_s that is shorter: a fault must end before it comes again")
    table.finish()
    return fault


def _folder() -> Path:
    return Path(__file__).with_name("scenarios")
