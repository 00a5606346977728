"""Random scenarios for hypothesis and for the long campaign: both pass something like random.Random."""

from __future__ import annotations

import random

from engine.scenario import Kill, Pause, Scenario
from engine.virtual import KINDS, MS, SECOND, US, Op
from tailcut.types import Collective, DType, ReduceOp

MOST_BYTES = 24 << 20  # of all data packets of a scenario: keeps one within about a second
EAGER = 64 * 1024


def random_scenario(draw: random.Random) -> Scenario:
    size = draw.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 16))
    payload = draw.choice((512, 1448, 1448, 8944))
    options = _options(draw)
    ops = _ops(draw, size)
    network = _network(draw, size, ops)
    if size > 1 and draw.random() < 0.2:
        return _with_kills(draw, size, payload, ops)
    late = draw.random() < 0.3
    arrivals = tuple(int(10 ** draw.uniform(0, 10)) if draw.random() < 0.4 else 0 for _ in range(size))
    liveness = options.get("liveness_ns", 5 * SECOND)
    pauses = tuple(
        Pause(rank, int(10 ** draw.uniform(3, 9.5)), int(liveness * draw.uniform(0.001, 0.6)))
        for rank in draw.sample(range(size), draw.choice((0, 0, 0, 1, 2)) if size > 1 else 0)
    )
    return Scenario(
        size=size,
        ops=ops,
        payload=payload,
        seed=draw.randrange(2**32),
        options=options,
        network=network,
        arrivals_ns=arrivals if late else (),
        pauses=pauses,
        shuffle=draw.random() < 0.5,
        limit_ns=300 * SECOND,  # enough for the worst networks, too much for a rank that waits for ever
    )


def _with_kills(draw: random.Random, size: int, payload: int, ops: tuple[Op, ...]) -> Scenario:
    """Little other bad luck: who is alive must be heard, or nobody could say who is dead."""
    dead = draw.sample(range(size), 1 if size < 3 or draw.random() < 0.7 else 2)
    return Scenario(
        size=size,
        ops=ops,
        payload=payload,
        seed=draw.randrange(2**32),
        options={"liveness_ns": draw.choice((SECOND // 2, SECOND, 5 * SECOND))},
        network={"loss": draw.choice((0, 0, 0.01, 0.05)), "jitter_ns": draw.choice((0, 0, 100 * US))},
        arrivals_ns=tuple(draw.choice((0, 0, 100 * MS)) for _ in range(size)),
        kills=tuple(Kill(rank, int(10 ** draw.uniform(1, 8.5))) for rank in dead),
        shuffle=draw.random() < 0.5,
    )


def _options(draw: random.Random) -> dict[str, int]:
    options: dict[str, int] = {}
    if draw.random() < 0.3:
        options["eager_bytes"] = draw.choice((0, 1, 1000, EAGER, 1 << 20))
    if draw.random() < 0.3:
        options["stash_bytes"] = draw.choice((0, 600, 5000, 100_000))
    if draw.random() < 0.3:
        options["retained_bytes"] = draw.choice((0, 1000, 10_000, 100_000))
    if draw.random() < 0.2:
        options["receive_bytes"] = draw.choice((32 << 10, 100 << 10, 1 << 20))
    if draw.random() < 0.2:
        options["report_every"] = draw.choice((1, 4, 100))
    if draw.random() < 0.2:
        options["liveness_ns"] = draw.choice((2, 5, 30)) * SECOND
    return options


def _ops(draw: random.Random, size: int) -> tuple[Op, ...]:
    wanted = min(draw.choice((1, 1, 2, 4, 8, 24, 64)), 160 // size)
    ops: list[Op] = []
    bytes_left = MOST_BYTES
    for salt in range(wanted):
        family, collective = draw.choice(KINDS)
        halves_too = family != "ring"
        dtype = draw.choice([each for each in DType if halves_too or not each.half])
        count = _count(draw, size, dtype.itemsize)
        travels = 2 * count * dtype.itemsize * size * (size if family == "small" else 1)
        if travels > bytes_left:
            count = draw.randrange(100)
        bytes_left -= travels
        op = draw.choice(list(ReduceOp)).name.lower()
        if op == "avg" and not dtype.floating:
            count = min(count, 2000)  # the reference divides integers slowly
        ops.append(
            Op(
                count,
                family,
                collective,
                dtype.name.lower(),
                op,
                rotation=draw.randrange(size) if collective is Collective.ALL_REDUCE else 0,
                tag=draw.choice((0, 0, 1, 2, 65535)),
                in_place=draw.random() < 0.7,
                salt=salt,
            )
        )
    return tuple(ops)


def _count(draw: random.Random, size: int, itemsize: int) -> int:
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice((0, 1, size - 1, size, size + 1))
    if kind == 1:
        return max(0, EAGER // itemsize + draw.randrange(-3, 4))
    return int(10 ** draw.uniform(0, 3 if kind == 2 else 5.2))


def _network(draw: random.Random, size: int, ops: tuple[Op, ...]) -> dict[str, float]:
    network: dict[str, float] = {"latency_ns": draw.choice((1 * US, 50 * US, 50 * US, 1 * MS, 20 * MS))}
    if draw.random() < 0.6:
        network["loss"] = draw.choice((0.001, 0.01, 0.05, 0.1, 0.3))
    if draw.random() < 0.3:
        network["duplicate"] = draw.choice((0.01, 0.3, 1.0))
    if draw.random() < 0.4:
        network["jitter_ns"] = min(network["latency_ns"] * draw.choice((0.1, 1, 5, 20)), 50 * MS)
    if draw.random() < 0.2:
        network["burst_gap_ns"] = draw.choice((1 * MS, 20 * MS, 300 * MS))
        network["burst_ns"] = network["burst_gap_ns"] * draw.choice((0.01, 0.1, 0.5))
    if draw.random() < 0.3:
        most = sum(op.count * op.itemsize * (size if op.family == "small" else 2) for op in ops)
        network["rate"] = max(most / draw.choice((0.1, 2.0)), draw.choice((5e6, 31.25e6, 125e6)))
        network["queue_bytes"] = draw.choice((16_000, 64_000, 256_000))
    return network
