"""Where counters wrap and lists grow long: hours, many packets, many ranks."""

from __future__ import annotations

import pytest

from engine.scenario import Kill, Scenario, run
from engine.virtual import KIND_NAMES, KINDS, SECOND, Op
from tailcut.types import Collective

Kind = tuple[str, Collective]
kinds = pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES)


@pytest.mark.parametrize("hours", [0.6, 1.2, 2.4])
@kinds
def test_hours_between_ranks(kind: Kind, hours: float) -> None:
    """The microseconds of 32 bits wrap after 1.2 hours, the stamps of 16 bits all the time."""
    late = int(hours * 3600 * SECOND)
    ops = tuple(Op(count, *kind, salt=count) for count in (10, 50_000))
    network = {"loss": 0.02}
    report = run(Scenario(2, ops, network=network, arrivals_ns=(0, late), limit_ns=2 * late))
    assert report.elapsed_ns < late + SECOND
    assert report.resent <= report.lost + 5


@pytest.mark.parametrize("family", ["ring", "small"])
def test_more_packets_than_16_bits_count(family: str) -> None:
    """Of a path, and of one transfer."""
    report = run(Scenario(2, (Op(128 * 140_000, family),), payload=512, network={"loss": 0.01}))
    assert report.planned > 4 * 2**16
    assert report.resent <= report.lost + 5


@pytest.mark.parametrize("size", [64, 100])
@kinds
def test_many_ranks(kind: Kind, size: int) -> None:
    report = run(Scenario(size, (Op(3000, *kind),), network={"loss": 0.01}))
    assert report.resent <= report.lost + 5


@pytest.mark.parametrize("size", [64, 80])
@kinds
def test_one_of_many_ranks_dies(kind: Kind, size: int) -> None:
    """Also in a ring, where only two ranks notice by themselves, and the others are told."""
    options, network = {"liveness_ns": SECOND}, {"loss": 0.01}
    run(Scenario(size, (Op(3000, *kind),), options=options, network=network, kills=(Kill(5, 100),)))
