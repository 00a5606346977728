"""A scenario is what its file says; a mistake in the file is an error that names the file and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailcut.lab import scenario
from tailcut.lab.fields import ScenarioError
from tailcut.lab.scenario import Delay, Loss, Port, load, parse

HEAD = 'summary = "A test."\nhosts = 4\n'
WANTED = {
    *("clean", "tail-1.5", "tail-3", "lossy-0.1", "lossy-1", "lossy-5", "lossy-10", "bursty-loss", "incast"),
    *("slow-link", "slow-link-10", "wan-1", "wan-10", "wan-50", "overlay", "straggler", "stragglers"),
    *("flaky", "killer", "blocked"),
}


def test_those_that_come_with_tailcut_are_valid_and_say_what_they_model() -> None:
    assert set(scenario.names()) >= WANTED
    for name in scenario.names():
        scene = load(name)
        assert scene.name == name
        assert scene.summary.endswith(".") and len(scene.summary) > 20


def test_they_are_what_their_names_say() -> None:
    assert [load(f"lossy-{percent}").losses for percent in ("0.1", "1", "5", "10")] == [
        (Loss(0.1),),
        (Loss(1.0),),
        (Loss(5.0),),
        (Loss(10.0),),
    ]
    for milliseconds in (1, 10, 50):
        delay = load(f"wan-{milliseconds}").delay
        assert delay is not None and delay.round_trip_ms == milliseconds
    assert load("slow-link").ports == (Port(3, out_mbit=75, in_mbit=75),)
    assert load("slow-link").network.rate_mbit == 150
    assert load("overlay").network.mtu == 1450 and not load("overlay").network.icmp
    assert not load("blocked").network.udp
    assert {fault.kind for fault in load("killer").faults} == {"kill", "pause"}
    assert {fault.kind for fault in load("flaky").faults} == {"link", "cut"}


def test_every_field_is_read() -> None:
    text = HEAD + (
        "[network]\nrate_mbit = 0\nmtu = 9000\nburst_bytes = 20000\naddresses = ['ipv4', 'ipv6']\n"
        "[[port]]\nhost = 1\nin_mbit = 5\nin_queue_bytes = 2000\n"
        "[[loss]]\npercent = 2\nburst_packets = 3\nhosts = [1]\ndirection = 'out'\n"
        "[delay]\nround_trip_ms = 5\njitter_ms = 1\n"
    )
    scene = parse(text, "a.toml")
    assert scene.network.rate_mbit is None and scene.network.ipv6 and scene.network.mtu == 9000
    assert scene.ports == (Port(1, in_mbit=5.0, in_queue_bytes=2000),)
    assert scene.losses == (Loss(2.0, 3.0, (1,), "out"),)
    assert scene.delay == Delay(5.0, 1.0)


def test_a_file_of_ones_own_and_another_number_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    stragglers = "[stragglers]\ndistribution = 'trace'\ntrace = 'lags.txt'\nhosts = [3]\n"
    path.write_text(HEAD + stragglers)
    (tmp_path / "lags.txt").write_text("1\n0\n2.5\n")
    scene = load(str(path))
    assert scene.name == "mine"
    assert scene.stragglers is not None and scene.stragglers.trace_ms == (1.0, 0.0, 2.5)
    assert load("clean", hosts=8).hosts == 8
    with pytest.raises(ScenarioError, match=r"3 is not a host: this scenario has hosts 0 to 1"):
        load(str(path), hosts=2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hosts = ", "a.toml: Invalid value"),
        ("hosts = 4", "a.toml: summary: is missing"),
        ('summary = "x"\nhosts = 1', "a.toml: hosts: must be 2 to 250, not 1"),
        ('summary = "x"\nhosts = true', "a.toml: hosts: must be a whole number, not True"),
        (HEAD + "host = 3", "a.toml: host: is no field; did you mean hosts?"),
        (HEAD + "network = 3", "a.toml: network: must be a table: [network]"),
        (HEAD + "[network]\nmtu = 100", "a.toml: network.mtu: must be 576 to 65535, not 100"),
        (HEAD + "[network]\nmtu = 9000", "a.toml: network.burst_bytes: lets no full packet pass: 9014 do"),
        (HEAD + "[network]\nrate = 3", "a.toml: network.rate: is no field; did you mean rate_mbit?"),
        (HEAD + "[network]\nrate_mbit = -1", "a.toml: network.rate_mbit: must be 0 to 100000, not -1"),
        (HEAD + "[network]\nrate_mbit = nan", "a.toml: network.rate_mbit: must be a number, not nan"),
        (HEAD + "[network]\naddresses = ['ipx']", "a.toml: network.addresses: 'ipx' is none of ipv4, ipv6"),
        (HEAD + "[network]\nudp = 1", "a.toml: network.udp: must be true or false, not 1"),
        (HEAD + "[loss]\npercent = 3", "a.toml: loss: must be tables: [[loss]]"),
        (HEAD + "[[loss]]\npercent = 101", "a.toml: loss[0].percent: must be 0 to 100, not 101"),
        (HEAD + "[[loss]]\npercent = 1\n[[loss]]\n", "a.toml: loss[1].percent: is missing"),
        (HEAD + "[[loss]]\npercent = 1\nhosts = [4]", "loss[0].hosts: 4 is not a host"),
        (HEAD + "[[loss]]\npercent = 1\ndirection = 'up'", "loss[0].direction: must be one of both, in, out"),
        (HEAD + "[[port]]\nhost = 0\n[[port]]\nhost = 0", "a.toml: port: a host has two: [0, 0]"),
        (HEAD + "[delay]\nround_trip_ms = 1\nreorder_percent = 1", "delay.reorder_ms: is missing"),
        (HEAD + "[background]\nmembers = 3", "background.members: must be even"),
        (HEAD + "[background]\nmembers = 2\nhosts = [1]", "background.hosts: must be two hosts, not [1]"),
        (HEAD + "[background]\nmembers = 2\nhosts = [1, 1]", "background.hosts: names a host twice"),
        (HEAD + "[background]\nmembers = 2\non_ms = 5", "background.on_ms: and off_ms go together"),
        (HEAD + "[stragglers]\ndistribution = 'pareto'\nlag_ms = 3", "stragglers.shape: is missing"),
        (HEAD + "[stragglers]\ndistribution = 'trace'\ntrace = 'no'", "stragglers.trace: "),
        (HEAD + "[[fault]]\nkind = 'fire'\nat_s = 1", "fault[0].kind: must be one of kill, pause, link, cut"),
        (HEAD + "[[fault]]\nkind = 'kill'\nat_s = 1\nto = 2", "fault[0].to: only a cut has it, not a kill"),
        (HEAD + "[[fault]]\nkind = 'link'\nat_s = 1\nevery_s = 2", "fault[0].every_s: needs a for_s"),
    ],
)
def test_a_mistake_names_file_and_field(text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "a.toml")
    assert complaint in str(caught.value)


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(ScenarioError, match=r"no scenario 'foggy': give a \.toml file or one of blocked, "):
        load("foggy")
