"""Agreeing on a fresh part of a store that remembers earlier lives."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ranks

torch = pytest.importorskip("torch")

from tailcut.errors import RendezvousError  # noqa: E402
from tailcut.pytorch.lives import fresh  # noqa: E402


def lives(store: Any, size: int, absent: int = -1) -> list[Any]:
    """The name each rank writes under, or its error."""

    def of(rank: int) -> str:
        if rank == absent:
            return ""
        found = fresh(store, rank, size, 1.0 if absent >= 0 else 20.0)
        found.set(f"rank{rank}", "here")
        return ""

    return ranks.run_threads(of, size)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_life_has_a_name_of_its_own(size: int) -> None:
    store = torch.distributed.HashStore()
    for life in range(1, 4):
        assert lives(store, size) == [""] * size
        names = {key for key in keys(store) if key.endswith("/rank0")}
        assert len(names) == (life if size > 1 else 0)
        for name in names:
            assert all(store.check([name.replace("rank0", f"rank{rank}")]) for rank in range(size))


def keys(store: Any) -> list[str]:
    return [str(key) for key in store.list_keys()]


def test_what_an_earlier_life_left_is_not_believed() -> None:
    store = torch.distributed.HashStore()
    store.set("tailcut-life/roster", json.dumps(["old", "token", "token"]))
    store.set("tailcut-life/token1", "token")
    store.set("tailcut-life/seen1", "old token")
    assert lives(store, 3) == [""] * 3
    assert not any("life-old" in key for key in keys(store))


def test_a_rank_that_does_not_come_is_named() -> None:
    found = lives(torch.distributed.HashStore(), 3, absent=2)
    assert isinstance(found[0], RendezvousError) and found[0].ranks == (2,)
    assert found[0].reason == "missing_ranks"
    assert found[1] == ""  # it has its name; what comes next will miss rank 2
