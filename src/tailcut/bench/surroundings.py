"""What the lab saw while libraries were measured in it: can the figures be believed, what was possible?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from tailcut.bench.report import Sheet
from tailcut.bench.results import Record, Results
from tailcut.lab import VALID, Scenario
from tailcut.types import DType

ETHERNET_BYTES = 14  # what the shapers count above the MTU
HEADERS_BYTES = 52  # IPv4, TCP, TCP's time stamps
GOODPUT_FLOOR = 0.9  # of what the background gets beside the reference; below it a result is void
HEADS = ("case", "contender", "turns", "invalid", "busy", "background Mbit/s", "of beside", "drops", "lost")


def limit_ns(scenario: Scenario, nbytes: int, ranks: int, background_mbit: float, on_share: float) -> float:
    """How fast an AllReduce could be if nothing but bandwidth counted: headers counted, in the mean.

    Every rank sends and receives 2 (n - 1) / n of the bytes; the port with the least rate left decides.
    background_mbit: goodput of both directions together while it is on.
    """
    network = scenario.network
    wire = (network.mtu + ETHERNET_BYTES) / (
        min(network.mtu, network.path_mtu or network.mtu) - HEADERS_BYTES
    )
    taken = background_mbit / 2 * on_share * wire
    own = {port.host: port for port in scenario.ports}
    left = []
    for host in range(ranks):
        port = own.get(host)
        rates = [network.rate_mbit]
        if port is not None:
            rates = [port.out_mbit or network.rate_mbit, port.in_mbit or network.rate_mbit]
        busy = scenario.background is not None and host in scenario.background.hosts
        left += [rate - (taken if busy else 0.0) for rate in rates if rate is not None]
    if not left:
        return 0.0
    return 2 * (ranks - 1) / ranks * nbytes * wire * 8e3 / max(min(left), 1e-3)


def judge(results: Results, scenario: Scenario, reference: str) -> tuple[Sheet, Sheet]:
    """Adds `surroundings` and `headroom` records; a table of each."""
    rows, limits = [], []
    for case in results.of("case"):
        turns = {
            name: [record for record in results.of("samples") if _is(record, case["name"], name)]
            for name in dict.fromkeys(record["name"] for record in results.of("contender"))
        }
        beside = _goodput(turns.get(reference, []))
        for name, records in turns.items():
            if records:
                record = _surroundings(records, case["name"], name, beside)
                results.add("surroundings", **record)
                rows.append(_row(record, reference))
        if turns.get(reference):
            limits.append(_headroom(results, scenario, case, turns[reference]))
    sheet = Sheet(f"What the lab saw ({reference} beside the same background is 1)", HEADS, rows)
    heads = ("case", "limit ms", f"{reference} mean ms", "headroom", "of transfer alone")
    return sheet, Sheet("Headroom: the reference over what the bandwidth allows", heads, limits)


def doubtful(surroundings: Sequence[Record], reference: str) -> set[tuple[str, str]]:
    """(case, contender) whose ratio to the reference decides nothing: most turns of either were invalid, or
    the contender took from the background what the reference left to it."""
    bad = {
        (seen["case"], seen["contender"])
        for seen in surroundings
        if 2 * seen["invalid_turns"] > seen["turns"]
    }
    bad |= {(seen["case"], seen["contender"]) for seen in surroundings if seen["void"]}
    cells = {(seen["case"], seen["contender"]) for seen in surroundings}
    return {(case, who) for case, who in cells if bad & {(case, who), (case, reference)}}


def _is(record: Record, case: str, name: str) -> bool:
    return record["case"] == case and record["contender"] == name and "lab" in record


def _goodput(records: Sequence[Record]) -> float | None:
    """The background's, in the mean over the turns in which it was on."""
    seen = [record["lab"] for record in records if record["lab"]["background_mbit"] is not None]
    on_s = sum(cell["seconds"] * cell["background_on_share"] for cell in seen)
    if not on_s:
        return None
    total = sum(cell["background_mbit"] * cell["seconds"] * cell["background_on_share"] for cell in seen)
    return float(total / on_s)


def _surroundings(records: Sequence[Record], case: str, name: str, beside: float | None) -> Record:
    cells = [record["lab"] for record in records]
    mbit = _goodput(records)
    share = mbit / beside if mbit is not None and beside else None
    bad = [cell["verdict"] for cell in cells if cell["verdict"] != VALID]
    void = "" if share is None or share >= GOODPUT_FLOOR else "it starved the background"
    return {
        "case": case,
        "contender": name,
        "turns": len(cells),
        "invalid_turns": len(bad),
        "invalid_because": bad[0] if bad else "",
        "busy_share": mean(cell["busy_share"] for cell in cells),
        "background_mbit": mbit,
        "background_share": share,  # of what it gets beside the reference
        "void": void,
        "queue_drops": sum(cell["queue_drops"] for cell in cells),
        "lost": sum(sum(cell["drops"].values()) for cell in cells),
        "faults": sum(len(cell["faults"]) for cell in cells),
    }


def _row(record: Record, reference: str) -> tuple[str, ...]:
    mbit, share = record["background_mbit"], record["background_share"]
    beside = "—" if share is None else f"{share:.2f}" + (" VOID" if record["void"] else "")
    return (
        record["case"],
        record["contender"],
        str(record["turns"]),
        str(record["invalid_turns"]),
        f"{record['busy_share']:.0%}",
        "—" if mbit is None else f"{mbit:.1f}",
        "1" if record["contender"] == reference and share is not None else beside,
        str(record["queue_drops"]),
        str(record["lost"]),
    )


def _headroom(results: Results, scenario: Scenario, case: Record, records: list[Record]) -> tuple[str, ...]:
    cells = [record["lab"] for record in records]
    on_share = mean(cell["background_on_share"] for cell in cells)
    nbytes = case["elements"] * DType.parse(case["dtype"]).itemsize
    limit = limit_ns(scenario, nbytes, case["ranks"], _goodput(records) or 0.0, on_share)
    whole = mean(sample for record in records for sample in record["durations_ns"])
    transfer = mean(sample for record in records for sample in record["transfers_ns"])
    if not limit:
        return (case["name"], "—", f"{whole / 1e6:.2f}", "—", "—")
    results.add(
        "headroom",
        case=case["name"],
        limit_ns=round(limit),
        mean_ns=round(whole),
        transfer_mean_ns=round(transfer),
        headroom=whole / limit,
        transfer_headroom=transfer / limit,
    )
    times = (f"{limit / 1e6:.2f}", f"{whole / 1e6:.2f}", f"{whole / limit:.2f}", f"{transfer / limit:.2f}")
    return (case["name"], *times)
