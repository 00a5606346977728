"""What the switch does to packets, as rules for nftables: pure text, one table in the switch's namespace.

Every drop has a counter of its own, and what a wire would not carry is counted too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailcut.lab.scenario import Loss

COUNTERS = ("oversize", "cut", "refused", "hole", "lost")
CHAIN = "bridge lab forward"
PATH = "ether saddr . ether daddr"
BURST_MS = 50
MILLION = 1_000_000  # what probabilities are counted in: 1 % is 10,000


@dataclass(frozen=True, slots=True)
class Filters:
    """The switch's rules but for the cuts, which come and go (`cut_line`)."""

    mtu: int
    path_mtu: int | None = None
    udp: bool = True
    icmp: bool = True
    losses: Sequence[Loss] = ()


def mac(host: int) -> str:
    return f"02:7c:00:00:00:{host + 1:02x}"


def table(filters: Filters) -> str:
    """The whole table, for an empty namespace."""
    lines = ["add table bridge lab", *(f"add counter bridge lab {name}" for name in COUNTERS)]
    lines.append("add set bridge lab cuts { type ether_addr . ether_addr; }")
    lines.append(f"add chain {CHAIN} {{ type filter hook forward priority 0; policy accept; }}")
    return "\n".join(lines) + "\n" + rules(filters)


def rules(filters: Filters) -> str:
    """The chain's rules anew; counters and cuts stay."""
    lines = [f"flush chain {CHAIN}", f"add rule {CHAIN} meta length > {filters.mtu} counter name oversize"]
    lines.append(f"add rule {CHAIN} {PATH} @cuts counter name cut drop")
    if not filters.udp:
        lines.append(f"add rule {CHAIN} ip protocol udp counter name refused drop")
        lines.append(f"add rule {CHAIN} ip6 nexthdr udp counter name refused drop")
    if not filters.icmp:
        lines.append(f"add rule {CHAIN} ip protocol icmp counter name refused drop")
        lines.append(f"add rule {CHAIN} ip6 nexthdr icmpv6 counter name refused drop")
    if filters.path_mtu is not None:
        lines.append(f"add rule {CHAIN} meta length > {filters.path_mtu} counter name hole drop")
    for number, loss in enumerate(filters.losses):
        lines += _loss(number, loss)
    return "\n".join(lines) + "\n"


def cut_lines(pairs: Sequence[tuple[int, int]], *, cut: bool) -> str:
    """Ends (or restores) the paths from one host to another; the way back is another path."""
    elements = ", ".join(f"{mac(source)} . {mac(target)}" for source, target in pairs)
    add = f"add element bridge lab cuts {{ {elements} }}\n"
    return add if cut else add + add.replace("add", "delete", 1)  # adding twice is fine, deleting is not


def _loss(number: int, loss: Loss) -> Iterator[str]:
    for where in _matches(loss):
        if loss.burst_packets <= 1:
            millionths = round(loss.percent * MILLION / 100)
            chance = f"numgen random mod {MILLION} < {millionths} " if millionths < MILLION else ""
            if millionths:
                yield f"add rule {CHAIN} {where}{chance}{_DROP}"
            continue
        yield from _bursts(f"bad{number}", where, loss)


_DROP = "counter name lost drop"


def _bursts(bad: str, where: str, loss: Loss) -> Iterator[str]:
    """A path whose addresses are in the set is in the bad state. A packet first decides whether it leaves
    that state; then whether it enters it. So the bad state has 1 / leave packets in the mean, all lost, and
    good ones have (1 - enter) / enter between two bursts. After BURST_MS the path is good in any case: a
    queue that overflows drains, also when nobody sends any more."""
    share = loss.percent / 100
    leave = 1 / loss.burst_packets
    enter = leave * share / (1 - share)
    flags = f"flags dynamic,timeout; timeout {BURST_MS}ms"
    yield f"add set bridge lab {bad} {{ type ether_addr . ether_addr; {flags}; size 65535; }}"
    chance = f"numgen random mod {MILLION} < "
    rule = f"add rule {CHAIN} {where}"
    yield f"{rule}{PATH} @{bad} {chance}{round(leave * MILLION)} delete @{bad} {{ {PATH} }} accept"
    yield f"{rule}{PATH} @{bad} {_DROP}"
    yield f"{rule}{chance}{round(enter * MILLION)} add @{bad} {{ {PATH} }} {_DROP}"


def _matches(loss: Loss) -> list[str]:
    """The packets it is about, in the words of nft: none of them matches twice."""
    if not loss.hosts:
        return [""]
    hosts = "{ " + ", ".join(map(mac, loss.hosts)) + " }"
    away, towards = f"ether saddr {hosts} ", f"ether daddr {hosts} "
    if loss.direction == "both":
        return [away, f"ether saddr != {hosts} {towards}"]
    return [away if loss.direction == "out" else towards]
