"""What a scenario asks of the switch happens: bursts of loss, cuts one way, packets refused, distance."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tailcut.lab import Hosts, LabError, missing_tools
from tailcut.lab.background import Background
from tailcut.lab.filters import Filters
from tailcut.lab.opened import open_scenario, verdict
from tailcut.lab.scenario import Background as Ring
from tailcut.lab.scenario import Delay, Loss, Network, Port, Scenario

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "the lab works here"),
]

FOLDER = Path(__file__).parent


def answering(hosts: Hosts, host: int) -> None:
    command = [sys.executable, str(FOLDER / "ping.py"), "answer", hosts.address(host)]
    process = hosts.spawn(host, command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def ping(hosts: Hosts, source: int, target: int, count: int = 1, size: int = 64) -> list[float | None]:
    command = [sys.executable, str(FOLDER / "ping.py"), "ask", hosts.address(target), str(count), str(size)]
    return list(json.loads(hosts.run(source, command)))


def reaches(hosts: Hosts, source: int, target: int, size: int = 64) -> bool:
    return ping(hosts, source, target, size=size) != [None]


def stream(hosts: Hosts, source: int, target: int, packets: int) -> dict[str, int]:
    """Numbered datagrams; how many arrived, and how many runs of missing ones there were."""
    script = str(FOLDER / "stream.py")
    address = hosts.address(target)
    pipes = {"stdout": subprocess.PIPE, "text": True}
    receiver = hosts.spawn(target, [sys.executable, script, "receive", "udp", address], **pipes)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = hosts.spawn(source, [sys.executable, script, "send", "udp", address, str(packets)])
    assert sender.wait(timeout=30) == 0
    return dict(json.loads(receiver.communicate(timeout=30)[0]))


def tcp_mbit(hosts: Hosts, source: int, target: int) -> float:
    script, address = str(FOLDER / "stream.py"), hosts.address(target)
    command = [sys.executable, script, "receive", "tcp", address]
    receiver = hosts.spawn(target, command, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    sender = hosts.spawn(source, [sys.executable, script, "send", "tcp", address, "1"])
    assert sender.wait(timeout=30) == 0
    seen = json.loads(receiver.communicate(timeout=30)[0])
    return float(seen["bytes"] * 8e-6 / seen["seconds"])


def test_bursts_of_loss_have_the_share_and_the_length_asked_for() -> None:
    packets, percent, length = 20_000, 5.0, 10.0
    with Hosts(2, behaviour=Filters(1500, losses=(Loss(percent, length),))) as hosts:
        seen = stream(hosts, 0, 1, packets)
        lost = hosts.lost()
    assert seen["packets"] == packets - lost
    bursts = packets * percent / 100 / length
    # A burst's length is geometric: its variance is length squared, and the number of bursts is random too.
    assert abs(lost - bursts * length) < 5 * length * (2 * bursts) ** 0.5
    assert lost / seen["gaps"] == pytest.approx(length, rel=5 / seen["gaps"] ** 0.5)


def test_loss_can_be_one_way_and_of_one_host() -> None:
    with Hosts(3, behaviour=Filters(1500, losses=(Loss(100.0, hosts=(1,), direction="in"),))) as hosts:
        assert stream(hosts, 1, 0, 100)["packets"] == 100
        for host in range(3):
            answering(hosts, host)
        assert reaches(hosts, 0, 2) and reaches(hosts, 2, 0)
        assert not reaches(hosts, 0, 1)
        hosts.set_losses([Loss(100.0, hosts=(1,))])
        assert not reaches(hosts, 1, 2) and not reaches(hosts, 2, 1) and reaches(hosts, 0, 2)


def test_a_cut_goes_one_way_and_a_link_comes_back() -> None:
    with Hosts(3) as hosts:
        hosts.cut(0, 1)
        hosts.cut(0, 1)  # twice is no mistake
        assert stream(hosts, 1, 0, 100)["packets"] == 100
        for host in range(3):
            answering(hosts, host)
        assert not reaches(hosts, 0, 1)
        assert not reaches(hosts, 1, 0)  # the answer does not come through
        assert reaches(hosts, 0, 2)
        assert hosts.drops()["cut"] >= 2
        hosts.cut(0, 1, restore=True)
        assert reaches(hosts, 0, 1)
        hosts.set_link(0, up=False)
        assert not reaches(hosts, 0, 1) and not reaches(hosts, 1, 0) and reaches(hosts, 1, 2)
        hosts.set_link(0, up=True)
        assert reaches(hosts, 0, 1) and reaches(hosts, 1, 0)


def test_a_switch_can_refuse_a_kind_of_packet_or_lose_large_ones() -> None:
    with Hosts(2, behaviour=Filters(1500, udp=False)) as hosts:
        answering(hosts, 1)
        assert not reaches(hosts, 0, 1)
        assert hosts.drops()["refused"] == 1
    with Hosts(2, behaviour=Filters(1500, path_mtu=1450, icmp=False)) as hosts:
        answering(hosts, 1)
        assert reaches(hosts, 0, 1, size=1450 - 28)
        assert not reaches(hosts, 0, 1, size=1450 - 27)
        assert hosts.drops()["hole"] == 1


@pytest.mark.parametrize("round_trip_ms", [1.0, 10.0, 50.0])
def test_round_trips_have_the_length_asked_for_within_ten_percent(round_trip_ms: float) -> None:
    """A busy machine makes round trips longer, never shorter: one of four tries must be right."""
    medians: list[float] = []
    with Hosts(2, rate_mbit=40, delay=Delay(round_trip_ms)) as hosts:
        answering(hosts, 1)
        while len(medians) < 4 and min(medians, default=1e9) > 1.1 * round_trip_ms:
            times = ping(hosts, 0, 1, count=40)
            assert None not in times
            medians.append(statistics.median(time for time in times if time is not None) * 1e3)
        assert hosts.oversize() == 0
        assert hosts.delay_by in ("netem", "relay")
    assert min(medians) == pytest.approx(round_trip_ms, rel=0.1), medians


def test_distance_carries_what_the_cables_carry_with_loss_where_it_is() -> None:
    with Hosts(3, rate_mbit=40, delay=Delay(4.0, 0.2, 0.5, 1.0)) as hosts:
        assert stream(hosts, 0, 2, 3_000)["packets"] == 3_000
        hosts.set_losses([Loss(100.0, hosts=(2,), direction="out")])
        assert stream(hosts, 0, 2, 100)["packets"] == 100
        assert hosts.oversize() == 0


def test_background_traffic_takes_what_it_is_given_and_is_counted() -> None:
    ring = Ring(members=4, rate_mbit=20.0, message_bytes=200_000)
    scene = Scenario("t", "A test.", 2, Network(rate_mbit=100), background=ring)
    with open_scenario(scene) as lab:
        assert lab.background is not None
        hosts, mbit = lab.hosts, []
        while len(mbit) < 4 and (not mbit or max(mbit) < 38):
            with lab.cell() as cell:
                hosts.run(0, ["sleep", "1"])
            mbit.append(cell.record.background_mbit or 0.0)
        assert cell.record.oversize == 0
        assert cell.record.background_on_share == pytest.approx(1.0)
        assert cell.record.sent_bytes > 1e6
        (victim, _) = sorted(lab.background.pids())
        hosts.run(0, ["kill", "-9", str(victim)])
        with pytest.raises(LabError, match="the background traffic has ended"):
            for _ in range(100):
                hosts.run(0, ["sleep", "0.02"])
                lab.background.read()
    assert max(mbit) == pytest.approx(40.0, rel=0.1), mbit  # both directions


def test_background_in_bursts_is_counted_while_it_is_on() -> None:
    ring = Ring(members=2, on_ms=60.0, off_ms=60.0, rate_mbit=10.0, message_bytes=50_000)
    with Hosts(2, rate_mbit=100) as hosts, Background(hosts, ring, seed=1) as traffic:
        hosts.run(0, ["sleep", "0.4"])
        before = traffic.read()
        hosts.run(0, ["sleep", "2"])
        after = traffic.read()
    assert 0.2 < after.on_share_since(before) < 0.8
    assert after.mbit_since(before) == pytest.approx(20.0, rel=0.3)


def test_one_port_of_a_scenario_can_be_slow() -> None:
    scene = Scenario("t", "A test.", 2, Network(rate_mbit=200), ports=(Port(1, in_mbit=10),))
    with open_scenario(scene) as lab:
        shapes = [
            lab.hosts.run(host, ["tc", "qdisc", "show", "dev", "eth0"]).split("rate ")[1].split()[0]
            for host in range(2)
        ]
        fast, slow = tcp_mbit(lab.hosts, 1, 0), tcp_mbit(lab.hosts, 0, 1)
    assert shapes == ["200Mbit", "200Mbit"]
    assert slow < 10.1 and fast > 2 * slow, (fast, slow)


def test_the_verdict_says_why_nothing_may_be_concluded() -> None:
    assert verdict(0.69, 0) == "valid"
    assert verdict(0.71, 0).startswith("too busy: the cores were 71% busy")
    assert verdict(0.1, 2).startswith("not like a wire: 2 packets")
