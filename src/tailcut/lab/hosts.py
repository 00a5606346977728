"""Hosts: n network namespaces joined by a switch, with the rate, packet size and loss of a real network.

Each host is a namespace with one interface, `eth0`; the switch is one more namespace with a bridge in it,
so the machine's own namespace is never touched. Both ends of every cable are shaped (a token bucket) and
send packets of at most the MTU (they are segmented before the wire, as a cable would have it), and the
switch can lose single packets at random.

    with Hosts(4, rate_mbit=250) as hosts:
        process = hosts.spawn(0, ["ping", "-c", "1", hosts.address(1)])
        hosts.set_loss(1.0)
"""

from __future__ import annotations

import atexit
import itertools
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tailcut.lab import filters, leftovers, processes, wan
from tailcut.lab.cpulimit import CpuLimit
from tailcut.lab.filters import Filters
from tailcut.lab.scenario import HOSTS_MAX, Delay, Loss
from tailcut.lab.system import entering, require, run, run_inside, write_sysctls

BURST_BYTES = 3_900  # 125 µs at 250 Mbit/s, 0.195 % of 2 MB; one packet's worth loses 25 % of the rate
QUEUE_BYTES = 500_000  # a port's buffer: 16 ms at 250 Mbit/s, as a small switch has it
# The switch's ports are a little faster than the cables, with room for two bursts: they hold back what
# several hosts send to one, but not again what a host's own shaper has spaced already. At equal rates every
# packet waits for a second timer; on two cores of a virtual machine the processor was then the limit.
PORT_RATE_FACTOR = 1.01
PORT_BURST_FACTOR = 2
ETHERNET_BYTES = 14  # what the shaper counts above the MTU (no preamble, no checksum)

MACHINE_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")

_serials = itertools.count()


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What went over one host's cable since the lab began; bytes with Ethernet's header."""

    sent_packets: int
    sent_bytes: int
    received_packets: int
    received_bytes: int
    queue_drops_out: int  # packets the host's own shaper had no room for
    queue_drops_in: int  # packets the switch's port towards the host had no room for


class Hosts:
    """A lab of `n` hosts; use it as a context manager. Everything it makes is gone when the block ends."""

    def __init__(
        self,
        n: int,
        rate_mbit: float | None = 250,
        mtu: int = 1500,
        ipv6: bool = False,
        loss_percent: float = 0.0,
        burst_bytes: int = BURST_BYTES,
        queue_bytes: int = QUEUE_BYTES,
        congestion: str | None = None,
        probing: bool = False,
        behaviour: Filters | None = None,
        delay: Delay | None = None,
        seed: int = 0,
    ) -> None:
        """rate_mbit: of each cable in each direction, None for no limit.
        loss_percent: of single packets, in the switch.
        congestion: TCP's congestion control in the hosts (None: as the machine has it).
        probing: TCP finds a path's MTU by itself where no ICMP tells it.
        behaviour: everything else the switch does to packets.
        delay: how far apart the hosts are, its randomness from the seed."""
        if not 1 <= n <= HOSTS_MAX:
            raise ValueError(f"n must be 1 to {HOSTS_MAX}, not {n}")
        if not 576 <= mtu <= 65_535:
            raise ValueError(f"mtu must be 576 to 65535 bytes, not {mtu}")
        if burst_bytes < mtu + ETHERNET_BYTES:
            raise ValueError(f"burst_bytes={burst_bytes} lets no full packet pass: {mtu + ETHERNET_BYTES} do")
        self.n = n
        self.mtu = mtu
        self.ipv6 = ipv6
        self.burst_bytes = burst_bytes
        self.queue_bytes = queue_bytes
        self.rate_mbit = rate_mbit
        self.loss_percent = loss_percent
        self.delay_by = ""  # what makes the distance: netem or relay; empty without one
        self._filters = behaviour or Filters(mtu)
        self.congestion = congestion or MACHINE_CONGESTION.read_text(encoding="ascii").strip()
        self._probing = probing
        self._limits: dict[int, CpuLimit] = {}
        self._delay, self._seed = delay, seed
        self._prefix = ""
        self._processes: list[subprocess.Popen[Any]] = []
        self._signals = processes.ExitOnSignals()

    def __enter__(self) -> Hosts:
        require()
        leftovers.clean()
        self._prefix = leftovers.prefix(next(_serials))
        atexit.register(self.close)
        self._signals.start()
        try:
            with processes.signals_held():
                self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what was spawned and removes the namespaces; again and again does no harm."""
        with processes.signals_held():
            atexit.unregister(self.close)
            processes.end(self._processes)
            self._processes.clear()
            if self._prefix:
                own = [name for name in leftovers.namespaces() if name.startswith(self._prefix)]
                self._prefix = ""
                leftovers.remove(own)
            for limit in self._limits.values():
                limit.close()
            self._limits.clear()
        self._signals.stop()

    # -- use ---------------------------------------------------------------------------------------------

    def namespace(self, host: int) -> str:
        if not 0 <= host < self.n:
            raise ValueError(f"host {host} of a lab of {self.n}")
        return f"{self._prefix}h{host}"

    def address(self, host: int, *, family: int = 4) -> str:
        """The host's address; family 6 needs ipv6=True."""
        self.namespace(host)  # checks the number
        if family == 6 and not self.ipv6:
            raise ValueError("this lab was made without ipv6=True")
        return f"fd7c::{host + 1:x}" if family == 6 else f"10.124.0.{host + 1}"

    def spawn(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts a process on a host; it ends with the lab, even if the lab is killed with SIGKILL.

        env replaces the environment; options go to subprocess.Popen. Call it from a thread that outlives
        the process: Linux ends such a child with the thread that started it.
        """
        process = processes.start([*entering(self.namespace(host)), *argv], env, **options)
        self._processes.append(process)
        if host in self._limits:
            self._limits[host].add(process.pid)
        return process

    def limit_cpu(self, host: int, percent: float) -> None:
        """Processes started on the host from now on share so much of one core; needs cgroups."""
        self._limits[host] = CpuLimit(self.namespace(host), percent)

    def pids(self, host: int) -> set[int]:
        """All processes on a host."""
        return {int(word) for word in run(["ip", "netns", "pids", self.namespace(host)]).split()}

    def run(self, host: int, argv: Sequence[str], *, text: str | None = None) -> str:
        """Runs one short command on a host and returns what it printed."""
        return run_inside(self.namespace(host), argv, text=text)

    def set_loss(self, percent: float) -> None:
        """From now on the switch loses each packet with this probability, independently of all others."""
        if not 0 <= percent <= 100:
            raise ValueError(f"loss is a percentage from 0 to 100, not {percent}")
        self.set_losses([Loss(percent)] if percent else [])
        self.loss_percent = percent

    def set_losses(self, losses: Sequence[Loss]) -> None:
        """From now on the switch loses packets in these ways and no other."""
        self._filters = replace(self._filters, losses=tuple(losses))
        self._nft(filters.rules(self._filters))

    def cut(self, source: int, target: int | None = None, *, restore: bool = False) -> None:
        """Nothing from the source reaches the target any more (None: anyone); the way back stays open."""
        targets = [target] if target is not None else [host for host in range(self.n) if host != source]
        for host in (source, *targets):
            self.namespace(host)  # checks the number
        self._nft(filters.cut_lines([(source, to) for to in targets], cut=not restore))

    def set_link(self, host: int, *, up: bool) -> None:
        """Pulls the cable out at the switch, or puts it in again; addresses and routes stay."""
        self.namespace(host)  # checks the number
        run(["ip", "-n", self._switch, "link", "set", f"port{host}", "up" if up else "down"])

    def set_port(
        self,
        host: int,
        *,
        out_mbit: float | None,
        in_mbit: float | None,
        out_queue_bytes: int,
        in_queue_bytes: int,
    ) -> None:
        """One host's cable: away from it and towards it."""
        self._shape(self.namespace(host), "eth0", out_mbit, self.burst_bytes, out_queue_bytes)
        port_rate = None if in_mbit is None else in_mbit * PORT_RATE_FACTOR
        burst = self.burst_bytes * PORT_BURST_FACTOR
        self._shape(self._switch, f"port{host}", port_rate, burst, in_queue_bytes)

    def set_rate(
        self, rate_mbit: float | None, *, towards: int | None = None, burst_bytes: int | None = None
    ) -> None:
        """Shapes both ends of every cable to this rate; None takes the limit away.

        towards: only the switch's port towards this host, which makes that port the one bottleneck.
        burst_bytes: instead of the lab's own; faster cables need more to reach their rate.
        """
        if rate_mbit is not None and rate_mbit <= 0:
            raise ValueError(f"a rate is above 0 Mbit/s, or None for no limit; not {rate_mbit}")
        burst = burst_bytes or self.burst_bytes
        if towards is not None:
            self.namespace(towards)  # checks the number
            self._shape(self._switch, f"port{towards}", rate_mbit, burst)
            return
        self.rate_mbit = rate_mbit
        port_rate = None if rate_mbit is None else rate_mbit * PORT_RATE_FACTOR
        for host in range(self.n):
            self._shape(self.namespace(host), "eth0", rate_mbit, burst)
            self._shape(self._switch, f"port{host}", port_rate, burst * PORT_BURST_FACTOR)

    def set_congestion(self, name: str) -> None:
        """TCP's congestion control for connections between hosts made from now on.

        By route: the namespace's own setting would refuse what the machine has not allowed for everyone.
        """
        for host in range(self.n):
            self._ip_batch(self.namespace(host), self._routes(host, f" congctl {name}"))

    def counters(self, host: int) -> HostCounters:
        namespace = self.namespace(host)
        (link,) = json.loads(run(["ip", "-n", namespace, "-json", "-stats", "link", "show", "dev", "eth0"]))
        sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
        return HostCounters(
            sent_packets=sent["packets"],
            sent_bytes=sent["bytes"],
            received_packets=received["packets"],
            received_bytes=received["bytes"],
            queue_drops_out=_queue_drops(namespace, "eth0"),
            queue_drops_in=_queue_drops(self._switch, f"port{host}"),
        )

    def drops(self) -> dict[str, int]:
        """Packets the switch has dropped on purpose since the lab began, by reason: lost at random, cut,
        refused (UDP or ICMP), hole (above the path's MTU)."""
        return {name: self._nft_counter(name) for name in filters.COUNTERS if name != "oversize"}

    def lost(self) -> int:
        """Packets the switch has lost on purpose since the lab began."""
        return self._nft_counter("lost")

    def oversize(self) -> int:
        """Packets above the MTU that passed the switch: 0, or the lab is not like a wire."""
        return self._nft_counter("oversize")

    # -- making ------------------------------------------------------------------------------------------

    @property
    def _switch(self) -> str:
        return f"{self._prefix}switch"

    def _ends(self) -> Iterator[tuple[str, str]]:
        """Both ends of every cable as (namespace, device)."""
        for host in range(self.n):
            yield self.namespace(host), "eth0"
            yield self._switch, f"port{host}"

    def _shape(
        self,
        namespace: str,
        device: str,
        rate_mbit: float | None,
        burst_bytes: int,
        queue_bytes: int | None = None,
    ) -> None:
        shape = "noqueue"  # what a cable has from the start
        if rate_mbit is not None:
            limit = queue_bytes or self.queue_bytes
            shape = f"tbf rate {round(rate_mbit * 1e6)}bit burst {burst_bytes} limit {limit}"
        run(["tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape.split()])

    def _build(self) -> None:
        for name in [self._switch, *map(self.namespace, range(self.n))]:
            run(["ip", "netns", "add", name])
            # Hosts' addresses are ours to give: no duplicate detection, no asking for routers.
            quiet = {"accept_dad": "0", "router_solicitations": "0"}
            no_ipv6 = not self.ipv6 or name == self._switch
            write_sysctls(name, _for_all_interfaces({"disable_ipv6": "1"} if no_ipv6 else quiet))
            if self._probing:
                write_sysctls(name, {"ipv4/tcp_mtu_probing": "1"})  # for IPv6 too
        if Path(
            "/proc/sys/net/bridge"
        ).exists():  # a switch has no firewall of the hosts' kind: it costs processor
            write_sysctls(
                self._switch, {f"bridge/bridge-nf-call-{name}tables": "0" for name in ("arp", "ip", "ip6")}
            )
        # A listening switch forwards copies and drops the originals, so a packet in its queues is no longer
        # on its sender's account, as behind a real network card. Otherwise TCP, which keeps a millisecond
        # of data in its own host's queue, would never keep more in the switch's either.
        cables = ["link add switch0 type bridge stp_state 0 mcast_snooping 0"]
        cables.append("link set switch0 promisc on up")
        for host in range(self.n):
            peer = f"peer name eth0 address {filters.mac(host)} mtu {self.mtu} netns {self.namespace(host)}"
            cables.append(f"link add port{host} mtu {self.mtu} type veth {peer}")
            cables.append(f"link set port{host} master switch0")
        self._ip_batch(self._switch, cables)
        for host in range(self.n):
            self._build_host(host)
        for namespace, device in self._ends():
            _segment_before_the_wire(namespace, device)
        self._ip_batch(self._switch, [f"link set port{host} up" for host in range(self.n)])
        # The switch knows every address from the start: nothing is learned, nothing flooded.
        known = [f"fdb replace {filters.mac(host)} dev port{host} master static" for host in range(self.n)]
        run(["bridge", "-n", self._switch, "-batch", "-"], text="\n".join(known) + "\n")
        self._nft(filters.table(self._filters))
        if self.loss_percent or not self._filters.losses:
            self.set_loss(self.loss_percent)
        self.set_rate(self.rate_mbit)
        if self._delay is not None:
            ports = [f"port{host}" for host in range(self.n)]
            self.delay_by, relay = wan.build(self._switch, ports, self.mtu, self._delay, self._seed)
            self._processes += [relay] if relay is not None else []
        self.set_congestion(self.congestion)

    def _build_host(self, host: int) -> None:
        lines = ["link set lo up", "link set eth0 up"]
        for family in self._families():
            length = {4: "/24", 6: "/64 nodad"}[family]
            lines.append(f"address add dev eth0 {self.address(host, family=family)}{length} noprefixroute")
            for other in range(self.n):
                if other != host:  # neighbours are known for good: no ARP between the packets
                    target = self.address(other, family=family)
                    known = f"lladdr {filters.mac(other)} dev eth0 nud permanent"
                    lines.append(f"neighbour replace {target} {known}")
        self._ip_batch(self.namespace(host), [*lines, *self._routes(host, "")])

    def _families(self) -> tuple[int, ...]:
        return (4, 6) if self.ipv6 else (4,)

    def _routes(self, host: int, options: str) -> Iterator[str]:
        """How the host reaches the others, in the words of `ip`."""
        for family in self._families():
            network = {4: "10.124.0.0/24", 6: "fd7c::/64"}[family]
            source = self.address(host, family=family)
            yield f"route replace {network} dev eth0 src {source}{options}"

    def _ip_batch(self, namespace: str, lines: Iterable[str]) -> None:
        run(["ip", "-n", namespace, "-batch", "-"], text="\n".join(lines) + "\n")

    def _nft(self, text: str) -> None:
        run_inside(self._switch, ["nft", "-f", "-"], text=text)

    def _nft_counter(self, name: str) -> int:
        answer = run_inside(self._switch, ["nft", "--json", "list", "counter", "bridge", "lab", name])
        (counter,) = [entry["counter"] for entry in json.loads(answer)["nftables"] if "counter" in entry]
        return int(counter["packets"])


def _for_all_interfaces(values: dict[str, str]) -> dict[str, str]:
    """IPv6 settings for the interfaces a namespace has and for those it will get."""
    scopes = ("all", "default")
    return {f"ipv6/conf/{scope}/{name}": value for scope in scopes for name, value in values.items()}


def _segment_before_the_wire(namespace: str, device: str) -> None:
    """No packet above the MTU may enter the cable, as if it were one.

    tso and gso: TCP makes single packets. tx-udp-segmentation: what UDP GSO built is cut up in software
    before the device. gro: the receiving end does not glue packets together again. Checksums and
    scatter-gather stay: they change no packet.
    """
    off = [word for name in ("tso", "gso", "gro", "tx-udp-segmentation") for word in (name, "off")]
    run_inside(namespace, ["ethtool", "-K", device, *off])


def _queue_drops(namespace: str, device: str) -> int:
    queues = json.loads(run(["tc", "-n", namespace, "-json", "-s", "qdisc", "show", "dev", device]))
    return sum(int(queue.get("drops", 0)) for queue in queues)
