"""What this host knows of its network: interfaces, their addresses, the route to another host.

Nothing here sends a packet: a UDP socket is connected only to ask the kernel which way it would go.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailcut.errors import RendezvousError

# ioctl requests on an interface name, from <linux/sockios.h>
_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFMTU = 0x8913, 0x8915, 0x8921
_IFF_UP = 1
_IF_INET6 = Path("/proc/net/if_inet6")
_UNUSABLE_IPV6 = 0x08 | 0x20 | 0x40  # duplicate, deprecated, still being checked (flags of if_inet6)
# An address nobody has (RFC 5737, RFC 3849): asking for the route to it finds the default route.
_ANYWHERE = {"ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "auto": "192.0.2.1"}
FAMILIES = {"auto": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


@dataclass(frozen=True)
class Interface:
    """One network interface that is up; addresses in the kernel's order, link-local ones with their zone."""

    name: str
    mtu: int  # bytes
    ipv4: tuple[str, ...]
    ipv6: tuple[str, ...]

    def addresses(self, family: str) -> tuple[str, ...]:
        """The addresses of a family; with auto, IPv4 first."""
        return {"ipv4": self.ipv4, "ipv6": self.ipv6, "auto": self.ipv4 + self.ipv6}[family]


@dataclass(frozen=True)
class Choice:
    """The local address a group uses, and why."""

    host: str
    interface: str  # "?" where the address belongs to no interface we can see
    mtu: int  # bytes; 0 where unknown
    why: str


# ---- interfaces


def interfaces() -> list[Interface]:
    """All interfaces that are up."""
    ipv6 = _ipv6_addresses()
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            flags = _ask(probe, name, _SIOCGIFFLAGS, "H")
            if not flags or not flags & _IFF_UP:
                continue
            found.append(
                Interface(
                    name=name,
                    mtu=_ask(probe, name, _SIOCGIFMTU, "i") or 0,
                    ipv4=_ipv4_address(probe, name),
                    ipv6=tuple(ipv6.get(name, ())),
                )
            )
    return found


def _ask(probe: socket.socket, name: str, request: int, form: str) -> int | None:
    """The answer of an ioctl on an interface, or None when it has gone or has no such value."""
    try:
        answer = fcntl.ioctl(probe, request, struct.pack("16s24x", name.encode()))
    except OSError:
        return None
    value: int = struct.unpack_from(form, answer, 16)[0]
    return value


def _ipv4_address(probe: socket.socket, name: str) -> tuple[str, ...]:
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("16s24x", name.encode()))
    except OSError:
        return ()
    return (socket.inet_ntoa(answer[20:24]),)


def _ipv6_addresses() -> dict[str, list[str]]:
    """Interface -> usable IPv6 addresses; empty on a host without IPv6."""
    found: dict[str, list[str]] = {}
    if not _IF_INET6.exists():
        return found
    for line in _IF_INET6.read_text().splitlines():
        digits, _, _, _, flags, name = line.split()
        if int(flags, 16) & _UNUSABLE_IPV6:
            continue
        address = ipaddress.IPv6Address(int(digits, 16))
        found.setdefault(name, []).append(f"{address}%{name}" if address.is_link_local else str(address))
    return found


def matching(names: Sequence[str], rule: str) -> list[str]:
    """The names a rule in NCCL's syntax selects: `eth,ib` prefixes, `=eth0` exact, `^lo,docker` all but.

    Prefixes select in the order of the rule, so that the first one is preferred.
    """
    exclude = rule.startswith("^")
    rest = rule.removeprefix("^")
    exact = rest.startswith("=")
    patterns = [part.strip() for part in rest.removeprefix("=").split(",") if part.strip()]

    def hit(name: str, pattern: str) -> bool:
        return name == pattern if exact else name.startswith(pattern)

    if exclude:
        return [name for name in names if not any(hit(name, pattern) for pattern in patterns)]
    selected = [name for pattern in patterns for name in names if hit(name, pattern)]
    return list(dict.fromkeys(selected))


# ---- the choice of the local address


def choose(toward: str | None, *, ifname: str = "", family: str = "auto", timeout_s: float = 10.0) -> Choice:
    """The local address to use for a group whose rendezvous host is `toward` (None: not known)."""
    up = [interface for interface in interfaces() if interface.addresses(family)]
    route = _route(toward, family, timeout_s)
    if ifname:
        return _by_rule(up, route, ifname, family)
    if route is not None:
        for interface in up:
            if route in interface.addresses(family):
                return Choice(route, interface.name, interface.mtu, f"route to {toward or 'the world'}")
        return Choice(route, "?", 0, f"route to {toward or 'the world'}")
    up.sort(key=lambda interface: interface.name == "lo")
    for interface in up:
        return Choice(interface.addresses(family)[0], interface.name, interface.mtu, "first interface up")
    raise RendezvousError(f"no interface {_with_address(family)}is up", reason="no_interface")


def _by_rule(up: list[Interface], route: str | None, rule: str, family: str) -> Choice:
    by_name = {interface.name: interface for interface in up}
    selected = [by_name[name] for name in matching(list(by_name), rule)]
    why = f"socket_ifname {rule!r}"
    for interface in selected:
        if route in interface.addresses(family):
            return Choice(str(route), interface.name, interface.mtu, f"{why}, on the route to the rendezvous")
    if rule.startswith("^"):  # "all but these" hardly means loopback: only when nothing else is left
        selected.sort(key=lambda interface: interface.name == "lo")
    if selected:
        first = selected[0]
        return Choice(first.addresses(family)[0], first.name, first.mtu, why)
    seen = ", ".join(interface.name for interface in interfaces()) or "none"
    raise RendezvousError(
        f"{why} selects no interface {_with_address(family)}that is up (up here: {seen})",
        reason="no_interface",
    )


def _with_address(family: str) -> str:
    return "" if family == "auto" else f"with an {family} address "


def _route(toward: str | None, family: str, timeout_s: float) -> str | None:
    """The source address the kernel would use, or None when there is no route.

    A target without an address of the wanted family leaves the default route of that family.
    """
    for host in (toward, _ANYWHERE[family]) if toward else (_ANYWHERE[family],):
        try:
            targets = resolve(str(host), 9, family, timeout_s)  # any port will do: nothing is sent
        except OSError:
            continue
        for kind, target in targets:
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(target)
                except OSError:
                    continue
                return _with_zone(probe.getsockname())
    return None


def _with_zone(name: Any) -> str:
    host, zone = str(name[0]), name[3] if len(name) == 4 else 0
    return f"{host}%{socket.if_indextoname(zone)}" if zone and "%" not in host else host


def resolve(host: str, port: int, family: str = "auto", timeout_s: float = 10.0) -> list[tuple[int, Any]]:
    """(family, socket address) of a host name in the resolver's order; OSError when none comes in time."""
    kind = FAMILIES[family]
    try:
        found = socket.getaddrinfo(host, port, kind, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
        return [(entry[0], entry[4]) for entry in found]
    except socket.gaierror:
        return _looked_up(host, port, kind, timeout_s)


def _looked_up(host: str, port: int, kind: int, timeout_s: float) -> list[tuple[int, Any]]:
    """getaddrinfo with a deadline, which the resolver does not offer: a thread that may be left behind."""
    answers: list[list[tuple[int, Any]] | OSError] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, kind, socket.SOCK_DGRAM)
            answers.append([(entry[0], entry[4]) for entry in found])
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="tailcut-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout_s))
    if not answers:
        raise TimeoutError(f"no answer about the host name {host} within {timeout_s:.3g} s")
    answer = answers[0]
    if isinstance(answer, OSError):
        raise answer
    return answer


# ---- facts about addresses and this host


def is_loopback(host: str) -> bool:
    """Whether an address reaches only its own host."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def family_of(host: str) -> str:
    """`ipv4` or `ipv6`."""
    return f"ipv{ipaddress.ip_address(host.partition('%')[0]).version}"


def for_peer(peer: str, own: str) -> str:
    """A peer's address as this host must write it: link-local ones need the zone of our own interface."""
    address, _, _ = peer.partition("%")
    zone = own.partition("%")[2]
    return f"{address}%{zone}" if zone and ipaddress.ip_address(address).is_link_local else address


def host_identity() -> str:
    """Equal for two processes exactly when they share a loopback interface: boot and network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        text = socket.gethostname()
    return hashlib.sha256(text.encode()).hexdigest()[:16]
