"""How ranks become a group: rounds over an all-gather of bytes, in which every rank hears every other.

1. `meet`: versions, byte order, shared configuration, UDP addresses; rank 0's nonce names the group.
2. `agree_payload`: after full-size probes of all pairs, the datagram size that fits all of them.
3. `agree`: a value of rank 0 that all take over.

What ranks say is JSON and is checked before use. A rank that fails between rounds says so in the next one
(`Rounds.together`), so that nobody waits for it in vain; every error names the ranks that caused it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tailcut import config
from tailcut.errors import Facts, RendezvousError, ranks_text
from tailcut.transport import netinfo
from tailcut.transport.frames import endpoint_text, json_object

AllGather = Callable[[bytes], list[bytes]]

# UDP payloads that just fit common paths, IPv4 or IPv6: jumbo frames, 4 KB, Ethernet, and Ethernet less what
# tunnels take (VXLAN, IPIP, WireGuard, cloud networks). The last one passes wherever QUIC does.
DATAGRAM_SIZES = (8972, 8952, 4052, 1472, 1452, 1422, 1402, 1372, 1352, 1252, 1232, 1200)
_HEADERS = {"ipv4": 28, "ipv6": 48}  # bytes of IP and UDP headers
MAX_ERROR_CHARACTERS = 2000  # of another rank's error that are repeated here


@dataclass(frozen=True)
class Member:
    """One rank as the others see it."""

    rank: int
    host: str
    port: int
    identity: str  # equal for ranks that share a loopback interface

    def __str__(self) -> str:
        return f"rank {self.rank} ({endpoint_text(self.host, self.port)})"


@dataclass(frozen=True)
class Membership:
    """Who forms the group, by rank."""

    group: int  # 32 bits: packets of other groups and of earlier lives differ here
    members: tuple[Member, ...]

    def peers(self, own_host: str) -> list[tuple[str, int]]:
        """The UDP addresses of all ranks, as a socket on `own_host` needs them."""
        return [(netinfo.for_peer(member.host, own_host), member.port) for member in self.members]


class Rounds:
    """Rounds of one rank: what everybody says, checked, or everybody's failure."""

    def __init__(self, all_gather: AllGather, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._all_gather = all_gather

    def share(self, name: str, value: object) -> list[Any]:
        """What all ranks passed in this round, by rank."""
        return self._round(name, {"value": value})

    @contextlib.contextmanager
    def together(self, name: str) -> Iterator[None]:
        """What happens inside leads to the round `name`: if it fails, the others hear of it there."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Exception):
                self._round(name, {"error": f"{error}"[:MAX_ERROR_CHARACTERS]})
            raise

    def error(self, what: str, reason: str, culprits: Sequence[int] = ()) -> RendezvousError:
        """An error of this rank."""
        return RendezvousError(what, reason=reason, facts=Facts(rank=self.rank, culprits=tuple(culprits)))

    def _round(self, name: str, content: Mapping[str, object]) -> list[Any]:
        blobs = self._all_gather(json.dumps({"round": name, "rank": self.rank, **content}).encode())
        if not isinstance(blobs, list) or len(blobs) != self.size:
            got = len(blobs) if isinstance(blobs, list) else type(blobs).__name__
            raise self.error(f"all_gather returned {got} answers for {self.size} ranks", "bad_message")
        said = [json_object(bytes(blob)) for blob in blobs]
        failed = [rank for rank, each in enumerate(said) if "error" in each]
        if failed:
            texts = [f"rank {rank}: {said[rank]['error']}"[:MAX_ERROR_CHARACTERS] for rank in failed[:4]]
            raise self.error(f"{ranks_text(failed)} failed ({'; '.join(texts)})", "peer_failed", failed)
        identity = [(each.get("round"), each.get("rank")) for each in said]
        wrong = [rank for rank in range(self.size) if identity[rank] != (name, rank)]
        if wrong:
            what = f"{ranks_text(wrong)} said something else than expected in round {name!r}"
            raise self.error(what, "bad_message", wrong)
        return [each.get("value") for each in said]


# ---- 1: who is there


def meet(rounds: Rounds, *, host: str, port: int, semantic: Mapping[str, object]) -> Membership:
    """Exchanges everything that must fit together, and refuses what does not."""
    mine = {
        "version": _version(),
        "byte_order": sys.byteorder,
        "config": dict(semantic),
        "host": host,
        "port": port,
        "identity": netinfo.host_identity(),
        "nonce": secrets.token_hex(16) if rounds.rank == 0 else None,
    }
    said = rounds.share("meet", mine)
    members = tuple(_member(rounds, rank, each) for rank, each in enumerate(said))
    _check_equal(rounds, said, "version", "runs tailcut")
    _check_equal(rounds, said, "byte_order", "has byte order")
    differs = config.differing({rank: each["config"] for rank, each in enumerate(said)})
    if differs:
        raise rounds.error(differs, "config_mismatch")
    _check_addresses(rounds, members)
    digest = hashlib.sha256(str(said[0]["nonce"]).encode()).digest()
    return Membership(int.from_bytes(digest[:4], "big"), members)


def _version() -> str:
    try:
        return metadata.version("tailcut")
    except metadata.PackageNotFoundError:
        return "unknown"


def _member(rounds: Rounds, rank: int, said: object) -> Member:
    """Nothing is used before its type and range are known."""
    if isinstance(said, dict):
        host, port, identity = said.get("host"), said.get("port"), said.get("identity")
        nonce_fits = rank != 0 or isinstance(said.get("nonce"), str)
        with contextlib.suppress(ValueError):
            if (
                isinstance(host, str)
                and netinfo.family_of(host)
                and type(port) is int
                and 0 < port < 65536
                and isinstance(identity, str)
                and isinstance(said.get("config"), dict)
                and nonce_fits
            ):
                return Member(rank, host, port, identity)
    raise rounds.error(f"rank {rank} did not introduce itself properly", "bad_message", [rank])


def _check_equal(rounds: Rounds, said: Sequence[Mapping[str, object]], name: str, verb: str) -> None:
    for rank, each in enumerate(said):
        if each.get(name) != said[0].get(name):
            what = f"rank {rank} {verb} {each.get(name)}, rank 0 {said[0].get(name)}"
            raise rounds.error(what, name, [rank])


def _check_addresses(rounds: Rounds, members: Sequence[Member]) -> None:
    families = {netinfo.family_of(member.host): member for member in reversed(members)}
    if len(families) > 1:
        what = f"IPv4 and IPv6 cannot be mixed: {families['ipv4']} and {families['ipv6']}"
        raise rounds.error(what, "family")
    if len({member.identity for member in members}) > 1:
        hidden = [member.rank for member in members if netinfo.is_loopback(member.host)]
        if hidden:
            offer = "offers" if len(hidden) == 1 else "offer"
            what = f"{ranks_text(hidden)} {offer} a loopback address, but the group spans several hosts"
            raise rounds.error(what, "loopback", hidden)
    seen: dict[tuple[str, int, str], Member] = {}
    for member in members:
        same = seen.setdefault((member.host, member.port, member.identity), member)
        if same is not member:
            what = f"ranks {same.rank} and {member.rank} both claim {endpoint_text(member.host, member.port)}"
            raise rounds.error(what, "socket", [same.rank, member.rank])


# ---- 2: the size of datagrams


def datagram_sizes(own_host: str, mtu: int, pinned: int = 0) -> list[int]:
    """The sizes to probe, largest first; those above the local MTU are left out by the probe itself."""
    if pinned:
        return [pinned]
    exact = mtu - _HEADERS[netinfo.family_of(own_host)]  # what just fits this host's own link
    extra = {exact} if DATAGRAM_SIZES[-1] < exact < DATAGRAM_SIZES[0] else set()
    return sorted({*DATAGRAM_SIZES, *extra}, reverse=True)


def agree_payload(rounds: Rounds, membership: Membership, confirmed: Sequence[int], pinned: int = 0) -> int:
    """The datagram size for the whole group, from what this rank's probes found for every peer."""
    said = rounds.share("probe", list(confirmed))
    for rank, sizes in enumerate(said):
        if not _are_sizes(sizes, rounds.size):
            raise rounds.error(f"rank {rank} sent senseless results of probes", "bad_message", [rank])
    pairs = [(a, b) for a in range(rounds.size) for b in range(rounds.size) if a != b]
    blocked = [(a, b) for a, b in pairs if said[a][b] == 0]
    if blocked:
        raise rounds.error(_blocked_text(membership, blocked, pinned), "udp_blocked", _common(blocked))
    return min((said[a][b] for a, b in pairs), default=pinned or DATAGRAM_SIZES[0])


def _are_sizes(said: object, size: int) -> bool:
    return (
        isinstance(said, list)
        and len(said) == size
        and all(type(each) is int and 0 <= each <= config.MAX_DATAGRAM_BYTES for each in said)
    )


def _blocked_text(membership: Membership, blocked: Sequence[tuple[int, int]], pinned: int) -> str:
    """A probe counts when it and its short answer arrive: 0 both ways means that either way is blocked."""
    members = membership.members
    texts = []
    for a, b in blocked:
        if (b, a) not in blocked:
            size = pinned or DATAGRAM_SIZES[-1]
            texts.append(f"datagrams of {size} bytes from {members[a]} to {members[b]} do not arrive")
        elif a < b:
            texts.append(f"UDP between {members[a]} and {members[b]} is blocked in at least one direction")
    more = f", and {len(texts) - 4} more pairs" if len(texts) > 4 else ""
    return "; ".join(texts[:4]) + more


def _common(blocked: Sequence[tuple[int, int]]) -> list[int]:
    """The ranks in every blocked pair: the one bad host, or both ends of the one bad path."""
    common = set(blocked[0])
    for pair in blocked:
        common &= set(pair)
    return sorted(common)


# ---- 3: what rank 0 decides


def agree(rounds: Rounds, name: str, value: object) -> Any:
    """Rank 0's value, on all ranks; also the sign that all ranks have come this far."""
    return rounds.share(name, value if rounds.rank == 0 else None)[0]
