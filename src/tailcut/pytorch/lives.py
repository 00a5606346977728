"""A part of the store that no earlier life of the job has written to.

Gloo finds its ranks by fixed keys in the store. Under torchrun the store outlives a restart, so a rank may
read where a dead one was, and is refused there. So all ranks first agree on a name that is new: every rank
writes a token of its own, rank 0 a roster of the tokens it saw and a nonce, and each rank believes only a
roster with its own token; rank 0 goes on until all have confirmed its nonce. Nothing written earlier fits.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from tailcut.errors import Facts, RendezvousError, ranks_text

_PAUSE_S, _PAUSE_MAX_S = 0.002, 0.05
_FOLDER = "tailcut-life"


def fresh(store: Store, rank: int, size: int, timeout_s: float) -> Store:
    """The store under a new name, the same for all ranks, who all must call this."""
    if size == 1:
        return store
    life = _Life(PrefixStore(_FOLDER, store), rank, size, timeout_s)
    nonce = life.lead() if rank == 0 else life.follow()
    return PrefixStore(f"life-{nonce}", store)


class _Life:
    """One rank's part of the agreement."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self._store, self._rank, self._size, self._timeout_s = store, rank, size, timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = _PAUSE_S

    def lead(self) -> str:
        nonce = secrets.token_hex(8)
        others = range(1, self._size)
        written: dict[int, str] = {}
        while True:
            tokens = {rank: self._read(f"token{rank}") for rank in others}
            if tokens != written:
                self._store.set("roster", json.dumps([nonce, *tokens.values()]))
                written = tokens
            missing = [r for r in others if self._read(f"seen{r}") != f"{nonce} {tokens[r]}"]
            if not missing:
                return nonce
            self._wait(f"{ranks_text(missing)} did not come to form the group", missing)

    def follow(self) -> str:
        token = secrets.token_hex(8)
        self._store.set(f"token{self._rank}", token)
        while True:
            roster = _roster(self._read("roster"), self._size)
            if roster and roster[self._rank] == token:
                self._store.set(f"seen{self._rank}", f"{roster[0]} {token}")
                return roster[0]
            self._wait("rank 0 did not gather the ranks to form the group", [0])

    def _read(self, key: str) -> str:
        """Its value, or nothing: get() would wait for it."""
        if not self._store.check([key]):
            return ""
        return bytes(self._store.get(key)).decode(errors="replace")

    def _wait(self, what: str, culprits: list[int]) -> None:
        if time.monotonic() > self._deadline:
            facts = Facts(rank=self._rank, culprits=tuple(culprits))
            raise RendezvousError(f"{what} in {self._timeout_s:g} s", reason="missing_ranks", facts=facts)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def _roster(text: str, size: int) -> list[str]:
    """The nonce and the tokens by rank, or nothing; it comes from the network."""
    try:
        said = json.loads(text)
    except ValueError:
        return []
    fits = isinstance(said, list) and len(said) == size and all(isinstance(each, str) for each in said)
    return said if fits else []
