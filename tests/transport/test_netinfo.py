"""The local address is that of the route to the rendezvous, unless a rule in NCCL's syntax says otherwise."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tailcut import RendezvousError
from tailcut.transport import netinfo
from tailcut.transport.netinfo import Interface

NAMES = ["lo", "eth0", "eth1", "docker0", "ib0"]


@pytest.mark.parametrize(
    ("rule", "selected"),
    [
        ("eth", ["eth0", "eth1"]),
        ("ib,eth", ["ib0", "eth0", "eth1"]),
        ("eth1,eth", ["eth1", "eth0"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("=eth1,lo", ["eth1", "lo"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["lo", "eth1", "docker0", "ib0"]),
        ("^=eth", NAMES),
        (" eth0 , ib0 ", ["eth0", "ib0"]),
        ("wlan", []),
    ],
)
def test_rules(rule: str, selected: list[str]) -> None:
    assert netinfo.matching(NAMES, rule) == selected


def host(monkeypatch: pytest.MonkeyPatch, route: str | None) -> None:
    """A host with a loopback, a management, a data and a container interface, and one route."""
    up = [
        Interface("lo", 65536, ("127.0.0.1",), ("::1",)),
        Interface("docker0", 1500, ("172.17.0.1",), ()),
        Interface("eth0", 1500, ("10.0.0.5",), ("fe80::5%eth0", "fd00::5")),
        Interface("ib0", 2044, ("10.1.0.5",), ()),
        Interface("wg0", 1420, (), ("fd01::5",)),
    ]
    monkeypatch.setattr(netinfo, "interfaces", lambda: list(up))
    monkeypatch.setattr(netinfo, "_route", lambda *_: route)


@pytest.mark.parametrize(
    ("route", "ifname", "family", "chosen"),
    [
        ("10.0.0.5", "", "auto", ("10.0.0.5", "eth0", 1500)),
        ("fd00::5", "", "ipv6", ("fd00::5", "eth0", 1500)),
        ("192.168.9.9", "", "auto", ("192.168.9.9", "?", 0)),  # an address on no interface we can see
        ("10.0.0.5", "ib", "auto", ("10.1.0.5", "ib0", 2044)),
        ("10.0.0.5", "ib,eth", "auto", ("10.0.0.5", "eth0", 1500)),  # both allowed: the route decides
        ("10.9.9.9", "ib,eth", "auto", ("10.1.0.5", "ib0", 2044)),  # neither on the route: the first named
        ("10.0.0.5", "^eth", "auto", ("172.17.0.1", "docker0", 1500)),
        ("10.0.0.5", "^eth,docker,ib", "ipv4", ("127.0.0.1", "lo", 65536)),  # nothing but loopback is left
        ("127.0.0.1", "^docker", "auto", ("127.0.0.1", "lo", 65536)),  # a job on one host
        ("10.0.0.5", "=wg0", "auto", ("fd01::5", "wg0", 1420)),
        ("10.0.0.5", "eth", "ipv6", ("fe80::5%eth0", "eth0", 1500)),
        (None, "", "auto", ("172.17.0.1", "docker0", 1500)),  # no route at all: the first that is no loopback
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch, route: str | None, ifname: str, family: str, chosen: tuple[str, str, int]
) -> None:
    host(monkeypatch, route)
    choice = netinfo.choose("head", ifname=ifname, family=family)
    assert (choice.host, choice.interface, choice.mtu) == chosen
    assert choice.why


@pytest.mark.parametrize(("ifname", "family"), [("wlan", "auto"), ("=ib0", "ipv6"), ("^lo,e,i,d,w", "auto")])
def test_a_rule_that_selects_nothing(monkeypatch: pytest.MonkeyPatch, ifname: str, family: str) -> None:
    host(monkeypatch, "10.0.0.5")
    with pytest.raises(RendezvousError) as caught:
        netinfo.choose("head", ifname=ifname, family=family)
    assert f"socket_ifname {ifname!r} selects no interface" in str(caught.value)
    assert "lo, docker0, eth0, ib0, wg0" in str(caught.value)
    assert caught.value.reason == "no_interface"


def test_this_host_has_a_loopback() -> None:
    found = {interface.name: interface for interface in netinfo.interfaces()}
    assert "127.0.0.1" in found["lo"].ipv4
    assert found["lo"].mtu >= 1500


def test_the_route_to_this_host_is_loopback() -> None:
    assert netinfo.choose("127.0.0.1").host == "127.0.0.1"
    assert netinfo.choose("127.0.0.1").interface == "lo"


def test_the_answer_fits_a_socket() -> None:
    choice = netinfo.choose(None)
    family = socket.AF_INET6 if netinfo.family_of(choice.host) == "ipv6" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        (_, address), *_ = netinfo.resolve(choice.host, 0)
        sock.bind(address)


def test_a_resolver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        if socket.AI_NUMERICHOST in args:
            raise socket.gaierror
        time.sleep(1)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", never)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer about the host name head within 0\.2 s"):
        netinfo.resolve("head", 80, timeout_s=0.2)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("address", "loopback", "family"),
    [
        ("127.0.0.1", True, "ipv4"),
        ("127.0.1.1", True, "ipv4"),
        ("10.0.0.1", False, "ipv4"),
        ("::1", True, "ipv6"),
        ("fe80::1%eth0", False, "ipv6"),
        ("fd00::1", False, "ipv6"),
    ],
)
def test_kinds_of_addresses(address: str, loopback: bool, family: str) -> None:
    assert netinfo.is_loopback(address) is loopback
    assert netinfo.family_of(address) == family


def test_link_local_peers_get_our_own_zone() -> None:
    assert netinfo.for_peer("fe80::2%eth7", "fe80::1%eth0") == "fe80::2%eth0"
    assert netinfo.for_peer("fd00::2", "fe80::1%eth0") == "fd00::2"
    assert netinfo.for_peer("10.0.0.2", "10.0.0.1") == "10.0.0.2"


def test_identity_is_that_of_the_loopback() -> None:
    assert netinfo.host_identity() == netinfo.host_identity()
    assert len(netinfo.host_identity()) == 16
