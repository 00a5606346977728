"""Makes a failing scenario smaller while it keeps failing: fewer operations, fewer kinds of bad luck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from engine.scenario import Scenario
from engine.virtual import Op

Fails = Callable[[Scenario], bool]


def shrink(scenario: Scenario, fails: Fails, seconds: float) -> Scenario:
    """The smallest found in that time; `scenario` itself must fail."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for candidate in _candidates(scenario):
            if time.monotonic() >= end:
                break
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def _candidates(scenario: Scenario) -> Iterator[Scenario]:
    """Big steps first."""
    chunk = len(scenario.ops) // 2
    while chunk:
        for start in range(0, len(scenario.ops), chunk):
            yield replace(scenario, ops=scenario.ops[:start] + scenario.ops[start + chunk :])
        chunk //= 2
    if scenario.shuffle:
        yield replace(scenario, shuffle=False)
    if scenario.arrivals_ns:
        yield replace(scenario, arrivals_ns=())
    for pause in scenario.pauses:
        yield replace(scenario, pauses=tuple(other for other in scenario.pauses if other != pause))
    for kill in scenario.kills:
        yield replace(scenario, kills=tuple(other for other in scenario.kills if other != kill))
    for name in scenario.network:
        yield replace(
            scenario, network={key: value for key, value in scenario.network.items() if key != name}
        )
    for name in scenario.options:
        yield replace(
            scenario, options={key: value for key, value in scenario.options.items() if key != name}
        )
    yield from _fewer_ranks(scenario)
    for index, op in enumerate(scenario.ops):
        for plain in _plainer(op):
            yield replace(scenario, ops=(*scenario.ops[:index], plain, *scenario.ops[index + 1 :]))


def _fewer_ranks(scenario: Scenario) -> Iterator[Scenario]:
    busy = [pause.rank for pause in scenario.pauses] + [kill.rank for kill in scenario.kills]
    for size in sorted({2, 3, scenario.size // 2, scenario.size - 1}):
        if max(busy, default=0) < size < scenario.size and size > 1:
            ops = tuple(replace(op, rotation=op.rotation % size) for op in scenario.ops)
            yield replace(scenario, size=size, ops=ops, arrivals_ns=scenario.arrivals_ns[:size])


def _plainer(op: Op) -> Iterator[Op]:
    for simple in (
        replace(op, count=op.count // 2),
        replace(op, count=max(op.count - 1, 0)),
        replace(op, tag=0),
        replace(op, rotation=0),
        replace(op, dtype="float32"),
        replace(op, op="sum"),
        replace(op, in_place=True),
        replace(op, salt=0),
    ):
        if simple != op:
            yield simple
