"""Datagrams that are not ours, thrown at rank 0's port while three ranks on loopback run all_reduces.

python benchmarks/hostile.py           20,000 datagrams
python benchmarks/hostile.py --quick   2,000

They come from another port: random bytes, truncated and bit-flipped copies of plausible packets with the
right group, oversized and empty ones. No value may be wrong, nobody may fail, and rank 0's counters must
account for every datagram the kernel delivered. What could come from a peer's own address is the matter of
the tests that run engines over a virtual network.
"""

from __future__ import annotations

import collections
import json
import random
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import trial
import typer

from tailcut.bench.report import Sheet, finish, terminal
from tailcut.bench.results import Record, Results

if TYPE_CHECKING:
    from ranks import Place

RESULTS = Path(__file__).resolve().parent / "results/hostile.jsonl"
RANKS = 3
HEADER = struct.Struct("<BBHIIHHIHH")  # native/engine/wire.hpp: version and kind, flags, source, group, ...
VERSION = 1
KINDS = range(1, 9)
BODY_BYTES = 1400
LARGEST_BYTES = 65_507  # that UDP over IPv4 can carry
EVERY_S = 0.0003  # between datagrams: what overruns the receive buffer tests the kernel, not us
SHARES = {"random": 30, "plausible": 20, "truncated": 20, "flipped": 25, "empty": 4, "oversized": 1}
END_S = 30.0
NOTES = [
    "Counted: `dropped_foreign` of the group and `unclaimed` of the socket, which count nothing else.",
    "Delivered: what was sent, less what the kernel dropped at rank 0's socket (/proc/net/udp).",
]


def plausible(draw: random.Random, group: int) -> bytes:
    """A packet a rank could have sent: every kind, small numbers, the right group."""
    word = draw.randrange(64) | draw.randrange(256) << 24
    header = HEADER.pack(
        VERSION << 4 | draw.choice(KINDS),
        draw.randrange(16) << 4,
        draw.randrange(RANKS),
        group,
        draw.randrange(200),
        draw.choice((0, 1, 0xFFFF)),
        draw.randrange(8),
        word,
        draw.randrange(1 << 16),
        draw.randrange(1 << 16),
    )
    return header + draw.randbytes(draw.randrange(BODY_BYTES))


def datagram(draw: random.Random, what: str, group: int) -> bytes:
    packet = plausible(draw, group)
    if what == "random":
        return draw.randbytes(draw.randrange(1, BODY_BYTES))
    if what == "truncated":
        return packet[: draw.randrange(1, HEADER.size)]
    if what == "flipped":
        bit = draw.randrange(8 * HEADER.size)
        changed = bytearray(packet)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
    if what == "empty":
        return b""
    if what == "oversized":
        return packet + draw.randbytes(LARGEST_BYTES - len(packet))
    return packet


def throw(target: tuple[str, int], group: int, count: int, seed: int) -> dict[str, int]:
    """Sends them all from one socket; how many of each kind the kernel took."""
    draw = random.Random(seed)
    sent: collections.Counter[str] = collections.Counter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for what in draw.choices(list(SHARES), list(SHARES.values()), k=count):
            sender.sendto(datagram(draw, what, group), target)
            sent[what] += 1
            time.sleep(EVERY_S)
    return dict(sent)


def run_rank(place: Place, seed: str, folder: str) -> dict[str, Any]:
    """A rank's process: rank 0 says where it is, all run the stream, rank 0 says what it counted."""
    with place.connect(algorithm="transpose") as group:
        link = group._link
        assert link is not None and link._endpoint is not None
        if place.rank == 0:
            where = {"address": link.address, "group": group.id}
            partial = Path(folder) / "where.partial"
            partial.write_text(json.dumps(where))
            partial.rename(Path(folder) / "where")
        group.barrier()
        before = count_foreign(group.counters(), link)
        ended: dict[str, Any] = trial.stream(group, seed, Path(folder) / "stop")
        group.barrier()
        ended["counters"] = group.counters()
        ended["unclaimed"] = link._endpoint.unclaimed
        ended["accounted"] = count_foreign(ended["counters"], link) - before
        ended["kernel_drops"] = kernel_drops(link.address[1])
        group.barrier()
        return ended


def count_foreign(counters: dict[str, int], link: Any) -> int:
    return int(counters["dropped_foreign"] + link._endpoint.unclaimed)


def kernel_drops(port: int) -> int:
    """What the kernel says it dropped at the UDP socket of this port."""
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[1].split(":")[1], 16) == port:
            return int(words[-1])
    raise LookupError(f"no UDP socket with port {port}")


def attack(count: int, seed: int) -> tuple[dict[str, int], list[Any]]:
    """What was sent, and how the ranks ended."""
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as folder,
        trial.ranks.Ranks(run_rank, RANKS, str(seed), folder) as running,
    ):
        running.await_output(trial.STREAMING)
        where = json.loads((Path(folder) / "where").read_text())
        sent = throw(tuple(where["address"]), where["group"], count, seed)
        (Path(folder) / "stop").touch()
        return sent, running.wait(END_S)


def judge(sent: dict[str, int], ends: list[Record], verdicts: trial.Verdicts) -> None:
    total = sum(sent.values())
    failed = [f"rank {each['rank']}: {each['error']}" for each in ends if "error" in each]
    verdicts.check("no rank failed", not failed, "; ".join(failed) or f"{total} datagrams")
    if failed:
        return
    wrong, operations = sum(each["wrong"] for each in ends), ends[0]["operations"]
    verdicts.check(
        "no wrong value", not wrong and operations > 2, f"{wrong} wrong in {operations} operations"
    )
    first = ends[0]
    least = total - first["kernel_drops"]
    found = f"{first['accounted']} of {total}, the kernel dropped {first['kernel_drops']}"
    verdicts.check(
        "every delivered datagram is counted, none twice", least <= first["accounted"] <= total, found
    )
    others = [each["accounted"] for each in ends[1:]]
    verdicts.check("the other ranks counted none", not any(others), str(others))


def main(
    output: Annotated[Path, typer.Option(help="JSONL file; the table goes beside it")] = RESULTS,
    count: Annotated[int, typer.Option(help="datagrams", max=20_000)] = 20_000,
    seed: Annotated[int, typer.Option(help="of the datagrams and of the stream")] = 1,
    quick: Annotated[bool, typer.Option(help="2,000 datagrams into *-quick.jsonl")] = False,
) -> None:
    """Random, truncated, flipped, oversized and empty datagrams at a rank's port during operations."""
    console = terminal()
    path = output.with_stem(output.stem + "-quick") if quick else output
    count = min(count, 2_000) if quick else count
    with Results(path, "hostile", {"count": count, "seed": seed}) as results:
        verdicts = trial.Verdicts(results, console)
        sent, reports = attack(count, seed)
        results.add("sent", **sent)
        ends = []
        for report in reports:
            fields = {"error": report.text()} if report.failed else report.value
            ends.append(results.add("rank", rank=report.rank, **fields))
        judge(sent, ends, verdicts)
        kinds = Sheet("Sent", ("what", "datagrams"), [(what, str(number)) for what, number in sent.items()])
        finish(results, "Foreign datagrams at a rank's port", [kinds, verdicts.sheet()], NOTES, console)
    raise typer.Exit(0 if verdicts.fine else 1)


if __name__ == "__main__":
    typer.run(main)
