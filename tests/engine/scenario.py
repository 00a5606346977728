"""A whole run as a value: who does what when, over which network. Running it checks all that must hold.

A scenario is a line of JSON, so that whatever fails can be run again with one command:
    .venv/bin/python -m fuzz.scenario '{"size": 4, ...}'
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine.virtual import MS, SECOND, US, Op, Started, Virtual, result_of
from group.reference import same_bits
from tailcut.types import Collective

POISON = 0xA5  # what callers write over their memory as soon as an operation has returned


class Wrong(AssertionError):
    """Something does not hold; the text ends with the command that shows it again."""


@dataclass(frozen=True)
class Pause:
    rank: int
    at_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Kill:
    rank: int
    at_ns: int


@dataclass(frozen=True)
class Scenario:
    """Operations are started in order at each rank (or shuffled), at the time 0 or when the rank comes.

    Without kills every operation must be right. With kills every one of a survivor is right or
    names the dead in time.
    """

    size: int
    ops: tuple[Op, ...]
    payload: int = 1448
    seed: int = 0
    options: Mapping[str, int] = field(default_factory=dict)
    network: Mapping[str, float] = field(default_factory=dict)
    arrivals_ns: tuple[int, ...] = ()  # by rank: when it starts its operations; missing ones: at 0
    pauses: tuple[Pause, ...] = ()
    kills: tuple[Kill, ...] = ()
    shuffle: bool = False  # each rank starts its operations in another order
    limit_ns: int = 60 * SECOND

    def to_json(self) -> str:
        default = asdict(Scenario(self.size, ()))
        fields = {key: value for key, value in asdict(self).items() if value != default[key] or key == "size"}
        plain = asdict(Op(0))
        fields["ops"] = [
            {key: value for key, value in asdict(op).items() if value != plain[key]} for op in self.ops
        ]
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Scenario:
        fields = json.loads(text)
        ops = [Op(**{"collective": 0, "count": 0} | given) for given in fields.pop("ops")]
        pauses = tuple(Pause(**given) for given in fields.pop("pauses", ()))
        kills = tuple(Kill(**given) for given in fields.pop("kills", ()))
        arrivals = tuple(fields.pop("arrivals_ns", ()))
        fixed = tuple(replace(op, collective=Collective(op.collective)) for op in ops)
        return Scenario(ops=fixed, pauses=pauses, kills=kills, arrivals_ns=arrivals, **fields)

    def command(self) -> str:
        return f".venv/bin/python -m fuzz.scenario '{self.to_json()}'"


@dataclass(frozen=True)
class Report:
    """What a run cost. Bounds on it are the business of the tests."""

    digest: int
    elapsed_ns: int  # of the slowest operation
    planned: int  # data packets of the Plans
    lost: int  # data packets that the network dropped, or a stash had no room for
    resent: int
    controls: int  # reports, pings and announcements
    delivered: int
    counters: dict[str, int]

    def repairs_per_loss(self) -> float:
        return self.resent / max(self.lost, 1)

    def controls_per_data(self) -> float:
        return self.controls / max(self.planned + self.resent, 1)


def run(scenario: Scenario) -> Report:
    """Runs it; raises Wrong when a value is wrong, memory is touched too late, or anything stays behind."""
    try:
        return _Run(scenario).to_the_end()
    except (AssertionError, RuntimeError) as problem:
        raise Wrong(f"{problem}\nreproduce: {scenario.command()}") from None


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.virtual = Virtual(
            scenario.size, scenario.payload, scenario.seed, scenario.options, scenario.network
        )
        self.begun_ns = self.virtual.now_ns
        self.ended: list[Started] = []
        self.dead = {kill.rank: self.begun_ns + kill.at_ns for kill in scenario.kills}
        self.alive = [rank for rank in self.virtual.ranks if rank not in self.dead]
        self.liveness_ns = scenario.options.get("liveness_ns", 5 * SECOND)

    def to_the_end(self) -> Report:
        for at_ns, action in self._timeline():
            self._wait_until(self.begun_ns + at_ns)
            action()
        self._take(self.virtual.finish(self.scenario.limit_ns, self.alive))
        late = [f"rank {one.rank}: {one.op}" for one in self.virtual.pending(self.alive)]
        assert not late, f"not finished after {self.scenario.limit_ns / SECOND} s: {late[:3]}"
        settled = self.virtual.settle(20 * SECOND, self.alive)
        kept = [rank for rank in self.alive if not self.virtual.net.idle(rank)]
        assert settled, f"ranks {kept} keep something for peers that have everything or are dead"
        self._nothing_stays()
        if not self.dead:
            self._nothing_wasted()
        return self._report()

    def _timeline(self) -> list[tuple[int, Any]]:
        events: list[tuple[int, Any]] = []
        for rank in range(self.scenario.size):
            arrivals = self.scenario.arrivals_ns
            events.append(
                (arrivals[rank] if rank < len(arrivals) else 0, lambda rank=rank: self._arrive(rank))
            )
        for pause in self.scenario.pauses:
            events.append((pause.at_ns, lambda p=pause: self.virtual.net.pause(p.rank, p.duration_ns)))
        for kill in self.scenario.kills:
            events.append((kill.at_ns, lambda kill=kill: self.virtual.net.kill(kill.rank)))
        return sorted(events, key=lambda event: event[0])

    def _arrive(self, rank: int) -> None:
        ops = list(self.scenario.ops)
        if self.scenario.shuffle:
            random.Random(f"{self.scenario.seed} {rank}").shuffle(ops)
            by_tag = {
                tag: iter([op for op in self.scenario.ops if op.tag == tag]) for tag in {op.tag for op in ops}
            }
            ops = [next(by_tag[op.tag]) for op in ops]  # within a tag all ranks keep one order
        for op in ops:
            self.virtual.start(rank, op)

    def _wait_until(self, at_ns: int) -> None:
        step = 100 * US
        while self.virtual.now_ns < at_ns:
            self._take(self.virtual.run(min(step, at_ns - self.virtual.now_ns)))
            step = min(step * 5 // 4, 50 * MS)

    def _take(self, ended: list[Started]) -> None:
        """Checks results the moment they are there, then does with the memory what callers do."""
        for one in ended:
            where = f"rank {one.rank}, {one.op}"
            if self.dead and one.rank not in self.dead and one.code != "none":
                self._check_accusation(one, where)
            elif one.rank not in self.dead:
                assert one.code == "none", f"{where}: {one.result}"
                want = one.op.expected(self.scenario.size)[one.rank]
                assert same_bits(one.output, want), f"{where}: wrong value"
            if one.input is not one.output:
                mine = one.op.inputs(self.scenario.size)[one.rank]
                assert same_bits(one.input, mine), f"{where}: the input was written to"
            one.fill(POISON)
            self.ended.append(one)

    def _check_accusation(self, one: Started, where: str) -> None:
        result = result_of(one)
        assert one.code == "peer_dead", f"{where}: {result}"
        named = set(result["culprits"])
        assert named, f"{where}: nobody is named: {result}"
        assert named <= self.dead.keys(), f"{where}: names {named}, dead are {self.dead.keys()}"
        told = one.at_ns + int(result["elapsed_ns"])
        waited = max(one.at_ns, min(self.dead[rank] for rank in named), *self._arrivals())
        late = told - waited - self.liveness_ns
        assert late <= 100 * MS, f"{where}: {late / MS:.1f} ms after liveness: {result}"

    def _arrivals(self) -> list[int]:
        return [self.begun_ns + at_ns for at_ns in self.scenario.arrivals_ns] or [self.begun_ns]

    def _nothing_stays(self) -> None:
        net = self.virtual.net
        assert net.run(self.virtual.now_ns + 3600 * SECOND), "something goes on for ever although all is done"
        touched = [one for one in self.ended if not one.holds(POISON)]
        assert not touched, f"memory of {touched[0].op} at rank {touched[0].rank} changed after its return"
        assert all(net.retained_bytes(rank) == 0 for rank in self.alive), "retained, though idle"
        assert not self.virtual.poll(), "a second result"
        assert net.delivered == self.virtual.total("packets_received"), "a packet was not counted"

    def _nothing_wasted(self) -> None:
        planned = sum(op.packets(self.scenario.size, self.scenario.payload) for op in self.scenario.ops)
        sent = self.virtual.total("data_sent")
        assert sent == planned, f"{sent} first-time data packets for {planned} of the Plans"
        refusals = ("malformed", "unexpected", "wrong_group", "foreign")
        odd = [reason for reason in refusals if self.virtual.total(f"dropped_{reason}")]
        assert not odd, f"engines refuse each other's packets: {odd}"

    def _report(self) -> Report:
        virtual, names = self.virtual, list(self.virtual.net.counters(0))
        counters = {name: virtual.total(name) for name in names}
        data = counters["data_sent"] + counters["data_resent"] + counters["data_copied"]
        lost = virtual.net.dropped_data + counters["dropped_stash_full"] + counters["dropped_early_full"]
        return Report(
            digest=virtual.net.digest,
            elapsed_ns=max((int((one.result or {})["elapsed_ns"]) for one in self.ended), default=0),
            planned=counters["data_sent"],
            lost=lost,
            resent=counters["data_resent"],
            controls=counters["packets_sent"] - data,
            delivered=virtual.net.delivered,
            counters=counters,
        )
