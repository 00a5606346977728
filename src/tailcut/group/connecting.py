"""From a process and a rendezvous to a Group: find the others, agree on everything, measure, begin."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tailcut.config import Config
from tailcut.errors import Misuse, RendezvousError
from tailcut.group.facade import Group
from tailcut.group.tuning import measure
from tailcut.schedule import Crossover, estimated_crossover, measured_crossover
from tailcut.transport import netinfo, rendezvous
from tailcut.transport.endpoint import SECOND_NS, Link
from tailcut.transport.rendezvous import AllGather, Membership, Rounds
from tailcut.transport.tcp import TcpAllGather, parse

log = logging.getLogger("tailcut.group")

MAX_SIZE = 65535  # ranks travel as 16 bits, one value is reserved
TUNING_NS = 150_000_000
TRACE = 5  # below logging.DEBUG
_LEVELS = {"ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG}
# Until something is measured, or where nothing is: a second stage on plain Ethernet, and its rate.
_GUESS_DELAY_NS, _GUESS_BYTES_PER_SECOND, _GUESS_MOST_BYTES = 100_000, 1_000_000_000, 262_144


def connect(
    rank: int | None = None,
    size: int | None = None,
    *,
    rendezvous: str | None = None,
    all_gather: AllGather | None = None,
    config: Config | None = None,
) -> Group:
    """Forms a group with the other ranks, who all must call this; returns when all can reach each other.

    `rank` and `size` default to what torchrun and its kin put into RANK and WORLD_SIZE. The ranks find each
    other by `rendezvous`, `tcp://host:port` of a free port on rank 0's host, or by an `all_gather` of bytes
    that the caller already has: called with this rank's bytes, it returns those of all ranks in order.
    """
    settings = (config or Config()).resolved()
    rank = _from_environment("RANK", "rank") if rank is None else rank
    size = _from_environment("WORLD_SIZE", "size") if size is None else size
    _check(rank, size, rendezvous, all_gather)
    _set_level(settings.debug)
    if size == 1:
        crossover = _guess(1)
        return Group(rank=0, size=1, id=0, config=settings, crossover=crossover, link=None)
    if all_gather is not None:
        return _form(Rounds(all_gather, rank, size), os.environ.get("MASTER_ADDR"), settings)
    host, _ = parse(rendezvous or "")
    meeting = TcpAllGather(
        rendezvous or "",
        rank=rank,
        size=size,
        join_timeout_s=settings.rendezvous_timeout_s,
        round_timeout_s=2 * settings.connect_timeout_s + 5,
    )
    try:
        return _form(Rounds(meeting, rank, size), host, settings)
    finally:
        meeting.close()


def _from_environment(variable: str, argument: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise Misuse(f"{argument} was not given, and {variable} in the environment is no number: {text!r}")
    return int(text)


def _check(rank: int, size: int, rendezvous: str | None, all_gather: AllGather | None) -> None:
    if type(size) is not int or not 1 <= size <= MAX_SIZE:
        raise Misuse(f"size must be a whole number from 1 to {MAX_SIZE}, not {size!r}")
    if type(rank) is not int or not 0 <= rank < size:
        raise Misuse(f"rank must be a whole number from 0 to {size - 1}, not {rank!r}")
    if rendezvous is not None and all_gather is not None:
        raise Misuse("give rendezvous or all_gather, not both")
    if size > 1 and rendezvous is None and all_gather is None:
        raise Misuse("give rendezvous (tcp://host:port) or all_gather, so that the ranks can find each other")
    if rendezvous is not None and not isinstance(rendezvous, str):
        raise Misuse(f"rendezvous must be text like tcp://host:port, not {rendezvous!r}")
    if all_gather is not None and not callable(all_gather):
        raise Misuse(f"all_gather must be a function from bytes to a list of bytes, not {all_gather!r}")


def _set_level(level: str) -> None:
    """Lets the wanted lines through, to stderr where the program has set up no logging of its own."""
    logger = logging.getLogger("tailcut")
    logger.setLevel(_LEVELS.get(level, TRACE))
    if level not in ("WARN", "ERROR") and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


def _form(rounds: Rounds, toward: str | None, settings: Config) -> Group:
    with rounds.together("meet"):
        choice = netinfo.choose(
            toward,
            ifname=settings.socket_ifname,
            family=settings.socket_family,
            timeout_s=settings.connect_timeout_s,
        )
        link = Link(choice.host, settings, _local_rank(settings))
    try:
        membership = rendezvous.meet(
            rounds, host=link.address[0], port=link.address[1], semantic=settings.semantic()
        )
        datagram_bytes = _open(rounds, link, choice, membership, settings)
        group = Group(
            rank=rounds.rank,
            size=rounds.size,
            id=membership.group,
            config=settings,
            crossover=_guess(rounds.size),
            link=link,
        )
        _tune(rounds, group)
    except BaseException:
        link.close(0)
        raise
    if rounds.rank == 0:
        _announce(group, link, choice, datagram_bytes)
    return group


def _local_rank(settings: Config) -> int:
    """Which of the ports from `port` on is ours."""
    text = os.environ.get("LOCAL_RANK", "0")
    local = int(text) if text.isdecimal() else 0
    if settings.port and settings.port + local > 65535:
        what = f"port {settings.port} plus local rank {local} is above 65535"
        raise RendezvousError(what, reason="socket")
    return local


def _open(
    rounds: Rounds, link: Link, choice: netinfo.Choice, membership: Membership, settings: Config
) -> int:
    """Opens the channel and settles the size of datagrams. Nobody sends before all others listen."""
    with rounds.together("open"):
        channel = link.open(membership.group, rounds.rank, membership.peers(choice.host))
    rounds.share("open", None)
    with rounds.together("probe"):
        sizes = rendezvous.datagram_sizes(choice.host, choice.mtu, settings.payload_bytes)
        # A little less than the whole time, so that the error about it comes within it.
        confirmed = channel.probe(sizes, round(0.9 * settings.connect_timeout_s * SECOND_NS))
    datagram_bytes = rendezvous.agree_payload(rounds, membership, confirmed, settings.payload_bytes)
    with rounds.together("ready"):
        channel.set_payload(datagram_bytes)
    rounds.share("ready", None)
    return datagram_bytes


# ---- which schedule from which size on


def _guess(size: int) -> Crossover:
    return estimated_crossover(
        size,
        delay_ns=_GUESS_DELAY_NS,
        bytes_per_second=_GUESS_BYTES_PER_SECOND,
        most_bytes=_GUESS_MOST_BYTES,
    )


def _tune(rounds: Rounds, group: Group) -> None:
    """Measures, unless the algorithm is pinned; all ranks take over what rank 0 found."""
    found: dict[str, Any] | None = None
    with rounds.together("crossover"):
        if group.config.algorithm == "auto":
            found = asdict(_measured(group))
    agreed = rendezvous.agree(rounds, "crossover", found)
    if agreed is not None:
        group.take_crossover(_crossover(rounds, agreed))


def _measured(group: Group) -> Crossover:
    def run(total: int, family: str) -> int:
        array = np.ones(total // 4, np.float32)
        started = time.perf_counter_ns()
        group.tuning_all_reduce(array, "sum", family)
        return time.perf_counter_ns() - started

    def agree(values: Sequence[int]) -> list[int]:
        array = np.array(values, np.int64)
        group.tuning_all_reduce(array, "max", "small")
        return [int(value) for value in array]

    medians = measure(run, agree, size=group.size, budget_ns=TUNING_NS)
    return measured_crossover(group.size, medians)


def _crossover(rounds: Rounds, said: object) -> Crossover:
    """Rank 0's crossover, checked as everything from the network."""
    if isinstance(said, dict):
        small, ring = said.get("small_max_bytes"), said.get("ring_min_bytes")
        ring_fits = ring is None or (type(ring) is int and ring >= 0)
        if type(small) is int and small >= 0 and ring_fits and said.get("size") == rounds.size:
            return Crossover(size=rounds.size, small_max_bytes=small, ring_min_bytes=ring, measured=True)
    raise rounds.error("rank 0 sent a crossover that makes no sense", "bad_message", [0])


def _announce(group: Group, link: Link, choice: netinfo.Choice, datagram_bytes: int) -> None:
    if not log.isEnabledFor(logging.INFO):
        return
    host, port = link.address
    log.info("rank 0: group %08x of %d ranks", group.id, group.size)
    log.info("rank 0: interface %s (%s), MTU %d", choice.interface, choice.why, choice.mtu)
    log.info("rank 0: UDP at %s port %d", host, port)
    log.info("rank 0: datagrams of %d bytes; socket %s", datagram_bytes, link.features)
    log.info("rank 0: %s", group.crossover)
    for line in group.config.table().splitlines():
        log.info("rank 0: %s", line)
