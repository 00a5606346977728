"""How long operations take in virtual time beside what the ports allow: who waits for the wrong thing?"""

from __future__ import annotations

from statistics import median

import pytest

from engine.virtual import MS, SECOND, US, Op, Virtual

PAYLOAD = 1448
WIRE = 1514 / PAYLOAD  # what the ports count of a packet, at least
FLOAT_BYTES = 4


def took_ms(virtual: Virtual, op: Op) -> float:
    begin = virtual.now_ns
    ended = virtual.start_all(op)
    while virtual.pending() and virtual.now_ns - begin < 60 * SECOND:
        virtual.run(MS)
    assert {one.code for one in ended} == {"none"}
    for one, right in zip(ended, op.expected(virtual.size), strict=True):
        assert (one.output == right).all()
    return (virtual.now_ns - begin) / MS


def least_ms(size: int, count: int, rate: float) -> float:
    """What bandwidth allows: 2 (n - 1) / n of the bytes through every port, in bytes per second."""
    return 2 * (size - 1) / size * count * FLOAT_BYTES * WIRE / rate * 1e3


@pytest.mark.parametrize("family", ["ring", "transpose"])
@pytest.mark.parametrize("size", [4, 8])
def test_ports_are_busy_from_the_first_operation_on(size: int, family: str) -> None:
    """Around a ring everybody waits for the earliest transfer: it may not take turns with later ones."""
    rate, count = 10e6, 65_536
    virtual = Virtual(size, PAYLOAD, network={"rate": rate, "latency_ns": 100 * US})
    took_ms(virtual, Op(1))  # everybody knows how far the others are
    times = [took_ms(virtual, Op(count, family, salt=salt)) for salt in range(4)]
    assert times[0] < 1.45 * least_ms(size, count, rate), times  # the ports' rate is being found
    assert max(times[1:]) < 1.25 * least_ms(size, count, rate), times


@pytest.mark.parametrize("loss", [0, 0.01])
@pytest.mark.parametrize("family", ["ring", "transpose"])
@pytest.mark.parametrize("seed", range(8))
def test_a_long_way_is_soon_full_after_small_operations(seed: int, family: str, loss: float) -> None:
    """Small messages tell nothing of what a port can carry; jitter is nobody's queue."""
    rate, count, round_trip_ms = 5e6, 262_144, 50
    network = {"rate": rate, "latency_ns": 25 * MS, "jitter_ns": 2 * MS, "loss": loss}
    virtual = Virtual(4, PAYLOAD, seed, network=network)
    for salt in range(6):
        took_ms(virtual, Op(200, salt=salt))
    times = [took_ms(virtual, Op(count, family, salt=salt)) for salt in range(5)]
    least = least_ms(4, count, rate)
    slack = 6 if family == "ring" else 4  # round trips: a loss costs one at every hop
    # A window of 16 packets doubles four times before it fills the way.
    assert times[0] < least + 14 * round_trip_ms, times
    assert max(times[1:]) < least + (slack + 4) * round_trip_ms, times
    assert median(times) < least + slack * round_trip_ms, times
