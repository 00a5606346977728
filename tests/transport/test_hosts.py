"""On several hosts: the right address, the datagram size that every path carries, and a named error within
its time when hosts cannot reach each other.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import ranks
import tailcut
from ranks import Place
from tailcut.lab import Hosts, missing_tools

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]


def reduce_and_tell(place: Place, settings: dict[str, Any]) -> tuple[float, str, int]:
    with place.connect(algorithm="transpose", **settings) as group:
        array = np.full(100_000, float(place.rank))
        outcome = group.all_reduce(array, timeout=10)
        assert (array == sum(range(place.size))).all() and outcome.complete
        assert group._link is not None
        sent = group.counters()
        group.barrier(timeout=10)
        return array[0], group._link.address[0], sent["data_sent"]


def packets(datagram_bytes: int, size: int) -> int:
    """What a rank sends at least for its share of 800 kB, counted in datagrams of this size."""
    payload = (datagram_bytes - 24) // 8 * 8
    return 2 * (size - 1) * (800_000 // size // payload)


def narrow(hosts: Hosts, host: int, mtu: int) -> None:
    hosts.run(host, ["ip", "link", "set", "dev", "eth0", "mtu", str(mtu)])


def block(hosts: Hosts, at: int, source: int) -> None:
    """Host `at` drops the UDP that comes from `source`."""
    rules = [
        "add table inet blocked",
        "add chain inet blocked input { type filter hook input priority 0; }",
        f"add rule inet blocked input ip saddr {hosts.address(source)} meta l4proto udp drop",
    ]
    hosts.run(at, ["nft", "-f", "-"], text="\n".join(rules) + "\n")


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_addresses_of_the_network_are_used(ipv6: bool) -> None:
    with Hosts(3, rate_mbit=None, ipv6=ipv6) as hosts:
        said = ranks.run(reduce_and_tell, 3, {}, hosts=hosts)
        assert [address for _, address, _ in said] == [
            hosts.address(host, family=6 if ipv6 else 4) for host in range(3)
        ]
        for _, _, sent in said:
            assert packets(1472, 3) <= sent <= 1.1 * packets(1452, 3) + 20


@pytest.mark.parametrize("mtu", [1450, 1400, 1280])
def test_one_narrow_host_decides_the_size_of_datagrams(mtu: int) -> None:
    with Hosts(3, rate_mbit=None) as hosts:
        narrow(hosts, 1, mtu)
        for _, _, sent in ranks.run(reduce_and_tell, 3, {}, hosts=hosts):
            assert packets(mtu - 28, 3) <= sent <= packets(mtu - 28, 3) + 40


def test_large_packets_are_used_where_all_paths_carry_them() -> None:
    with Hosts(2, rate_mbit=None, mtu=9000, burst_bytes=20_000) as hosts:
        for _, _, sent in ranks.run(reduce_and_tell, 2, {}, hosts=hosts):
            assert packets(8972, 2) <= sent <= packets(8972, 2) + 20


def test_a_size_that_does_not_fit_is_refused() -> None:
    with Hosts(2, rate_mbit=None) as hosts:
        settings = {"payload_bytes": 1473, "connect_timeout_s": 2.0}
        for report in ranks.reports(reduce_and_tell, 2, settings, hosts=hosts):
            assert isinstance(report.error, tailcut.RendezvousError), report.text()
            assert report.error.reason == "udp_blocked"


def connect_and_fail(place: Place, settings: dict[str, Any]) -> tuple[str, str, tuple[int, ...], float]:
    started = time.monotonic()
    with pytest.raises(tailcut.RendezvousError) as caught:
        place.connect(algorithm="transpose", **settings)
    error = caught.value
    return str(error), error.reason, error.ranks, time.monotonic() - started


@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
def test_blocked_udp_is_a_named_error_in_time_on_every_rank(both_ways: bool) -> None:
    with Hosts(4, rate_mbit=None) as hosts:
        block(hosts, at=2, source=1)
        if both_ways:
            block(hosts, at=1, source=2)
        for text, reason, culprits, elapsed in ranks.run(
            connect_and_fail, 4, {"connect_timeout_s": 3.0}, hosts=hosts
        ):
            assert "UDP between rank 1 (10.124.0.2:" in text and "and rank 2 (10.124.0.3:" in text
            assert text.count("is blocked") == 1
            assert (reason, culprits) == ("udp_blocked", (1, 2))
            assert elapsed < 3.0 + 3.0  # the rest is for processes to start on a busy test machine


def test_a_loopback_address_on_one_of_several_hosts_is_refused() -> None:
    environ = {"TAILCUT_SOCKET_IFNAME": "=lo"}
    with Hosts(2, rate_mbit=None) as hosts:
        for text, reason, culprits, _ in ranks.run(connect_and_fail, 2, {}, hosts=hosts, environ=environ):
            assert "ranks 0 and 1 offer a loopback address, but the group spans several hosts" in text
            assert (reason, culprits) == ("loopback", (0, 1))


def loses_its_network(place: Place) -> tuple[tuple[int, ...], float] | None:
    group = place.connect(algorithm="transpose", liveness_s=1.0)
    group.barrier()
    print("ready", flush=True)
    array = np.ones(1000)
    started = time.monotonic()
    while time.monotonic() - started < 15:
        begun = time.monotonic()
        try:
            group.all_reduce(array, timeout=10)
        except tailcut.PeerLost as error:
            return error.ranks, time.monotonic() - begun
        time.sleep(0.01)
    return None


def test_a_host_that_loses_its_network_is_named_by_the_others() -> None:
    with Hosts(3, rate_mbit=None) as hosts, ranks.Ranks(loses_its_network, 3, hosts=hosts) as running:
        running.await_output("ready", 20)
        hosts.run(1, ["ip", "link", "set", "dev", "eth0", "down"])
        reports = running.wait(20)
    for report in reports:
        assert report.error is None and report.value is not None, report.text()
        culprits, elapsed = report.value
        if report.rank == 1:  # alone, it cannot know better than that the others are silent
            assert culprits and set(culprits) <= {0, 2}
        else:
            assert culprits == (1,)
        assert elapsed < 2.5, "liveness is 1 s; the rest is a busy test machine"
