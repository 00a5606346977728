"""The lab is what it says: its rate, its packets, its losses, its counters, its addresses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailcut.lab import Hosts, missing_tools

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]

STREAM = str(Path(__file__).with_name("stream.py"))
HEADERS_BYTES = 20 + 20 + 12  # IPv4, TCP, TCP's time stamps


def stream(hosts: Hosts, kind: str, amount: float, *, family: int = 4) -> dict[str, Any]:
    """Traffic from host 0 to host 1; what the receiver saw."""
    address = hosts.address(1, family=family)
    receiver = hosts.spawn(
        1, [sys.executable, STREAM, "receive", kind, address], stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = hosts.spawn(0, [sys.executable, STREAM, "send", kind, address, str(amount)])
    assert sender.wait(timeout=30) == 0
    answer = receiver.communicate(timeout=30)[0]
    return dict(json.loads(answer))


@pytest.mark.parametrize("rate_mbit", [250.0, 40.0])
def test_a_tcp_stream_gets_the_rate_within_three_percent(rate_mbit: float) -> None:
    """A shaper's tokens are lost when the machine is too busy to use them: a slow try says nothing about
    the lab, a try that is too fast does. One of six must be right, and none too fast."""
    with Hosts(2, rate_mbit=rate_mbit) as hosts:
        want = rate_mbit * (hosts.mtu - HEADERS_BYTES) / (hosts.mtu + 14)
        goodputs_mbit: list[float] = []
        while len(goodputs_mbit) < 6 and max(goodputs_mbit, default=0) < 0.97 * want:
            seen = stream(hosts, "tcp", 3.0)
            goodputs_mbit.append(seen["bytes"] * 8e-6 / seen["seconds"])
        counters = hosts.counters(0)
        oversize = hosts.oversize()
    assert max(goodputs_mbit) == pytest.approx(want, rel=0.03), goodputs_mbit
    assert oversize == 0
    assert counters.sent_bytes / counters.sent_packets <= hosts.mtu + 14
    assert counters.sent_bytes > seen["bytes"]


def test_without_a_rate_nothing_is_shaped_and_a_rate_can_come_later() -> None:
    with Hosts(2, rate_mbit=None) as hosts:
        free = stream(hosts, "tcp", 1.0)
        hosts.set_rate(20, towards=1)
        shaped = stream(hosts, "tcp", 1.5)
    assert free["bytes"] / free["seconds"] > 10 * shaped["bytes"] / shaped["seconds"]
    assert shaped["bytes"] * 8e-6 / shaped["seconds"] < 20


@pytest.mark.parametrize("percent", [0.5, 5.0])
def test_single_packets_are_lost_with_the_probability_asked_for(percent: float) -> None:
    packets = 20_000
    with Hosts(2, rate_mbit=250, loss_percent=percent) as hosts:
        seen = stream(hosts, "udp", packets)
        lost = hosts.lost()
        assert hosts.counters(0).queue_drops_out == 0
        assert hosts.counters(1).queue_drops_in == 0
        hosts.set_loss(0)
        clean = stream(hosts, "udp", 2_000)
        assert hosts.lost() == lost
    assert seen["packets"] == packets - lost
    expected, spread = packets * percent / 100, (packets * percent / 100 * (1 - percent / 100)) ** 0.5
    assert abs(lost - expected) < 5 * spread  # five sigma: fails by chance once in 1.7 million runs
    # Single packets, not bursts: runs of consecutive losses are as rare as chance makes them.
    assert seen["gaps"] == pytest.approx(lost * (1 - percent / 100), abs=5 * spread)
    assert clean["packets"] == 2_000


def test_udp_segmentation_offload_reaches_the_wire_as_single_packets() -> None:
    with Hosts(2, rate_mbit=250) as hosts:
        seen = stream(hosts, "gso", 4_000)
        counters = hosts.counters(1)
        assert hosts.oversize() == 0
    assert seen["packets"] == 4_000
    assert counters.received_packets == 4_000
    assert counters.received_bytes == 4_000 * (1200 + 8 + 20 + 14)


def test_the_oversize_counter_would_see_what_a_wire_would_not_carry() -> None:
    with Hosts(2, rate_mbit=None) as hosts:
        hosts.run(0, ["ethtool", "-K", "eth0", "tx-udp-segmentation", "on", "gso", "on"])
        stream(hosts, "gso", 400)
        assert hosts.oversize() > 0


def test_ipv6_hosts_reach_each_other_by_ipv6() -> None:
    with Hosts(2, ipv6=True) as hosts:
        seen = stream(hosts, "udp", 500, family=6)
        with pytest.raises(ValueError, match="host 2 of a lab of 2"):
            hosts.address(2)
    assert seen["packets"] == 500


@pytest.mark.parametrize("family", [4, 6])
def test_the_congestion_control_of_new_connections_can_be_chosen(family: int) -> None:
    with Hosts(2, congestion="reno", ipv6=True) as hosts:
        assert stream(hosts, "tcp", 0.1, family=family)["control"] == "reno"
        hosts.set_congestion("cubic")
        assert stream(hosts, "tcp", 0.1, family=family)["control"] == "cubic"


def test_tcp_fills_the_queue_of_a_slow_port_as_behind_a_real_network_card() -> None:
    """A flow of CUBIC grows until the queue overflows, unless its own host still counts what lies there."""
    with Hosts(2, rate_mbit=None, queue_bytes=250_000, congestion="cubic") as hosts:
        hosts.set_rate(50, towards=1)
        stream(hosts, "tcp", 3.0)
        assert hosts.counters(1).queue_drops_in > 0
        assert hosts.counters(0).queue_drops_out == 0


def test_all_hosts_reach_all_others_and_arp_says_nothing() -> None:
    probe = "import socket,sys; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    probe += "for target in sys.argv[1:]: s.sendto(b'x', (target, 9))"
    with Hosts(5) as hosts:
        for host in range(5):
            others = [hosts.address(other) for other in range(5) if other != host]
            hosts.run(host, [sys.executable, "-c", probe, *others])
        for host in range(5):
            # Four datagrams each way and four answers (port unreachable): nothing else is on the wire.
            assert hosts.counters(host).received_packets == 8
            assert hosts.counters(host).sent_packets == 8


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"n": 0}, "n must be"),
        ({"n": 2, "mtu": 100}, "mtu"),
        ({"n": 2, "burst_bytes": 1_000}, "burst_bytes"),
        ({"n": 2, "loss_percent": 101.0}, "loss"),
        ({"n": 2, "rate_mbit": -1.0}, "rate"),
    ],
)
def test_wrong_settings_are_refused_and_leave_nothing(wrong: dict[str, float], word: str) -> None:
    before = namespaces()
    with pytest.raises(ValueError, match=word), Hosts(**wrong):  # type: ignore[arg-type]
        pass
    assert namespaces() == before


def namespaces() -> set[str]:
    return {
        line.split()[0] for line in subprocess.check_output(["ip", "netns", "list"], text=True).splitlines()
    }


def test_the_machines_own_interfaces_are_untouched() -> None:
    def own() -> list[str]:
        return [name for _, name in socket.if_nameindex()]

    before = own()
    with Hosts(3):
        assert own() == before
