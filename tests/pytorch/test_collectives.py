"""Every collective of torch.distributed on the backend tailcut: values against a reference in one process."""

from __future__ import annotations

from typing import Any

import pytest

import ranks
from pytorch.worlds import world
from ranks import Place

torch = pytest.importorskip("torch")

OURS = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
OTHERS = ("int8",)  # Gloo's
SHAPES = ((), (1,), (0,), (5, 3), (1000,), (70_001,))


def contribution(rank: int, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Small whole numbers, so that sums are exact in every dtype and equal in any order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


def reduced(op: str, shape: tuple[int, ...], dtype: Any, size: int, seed: int = 0) -> Any:
    stack = torch.stack([contribution(rank, shape, dtype, seed) for rank in range(size)])
    if op == "MIN":
        return stack.amin(0)
    if op == "MAX":
        return stack.amax(0)
    wide = stack.to(torch.float64) if dtype.is_floating_point else stack
    if op == "PRODUCT":
        return wide.prod(0).to(dtype)
    total = wide.sum(0)
    return (total / size if op == "AVG" else total).to(dtype)


def same(found: Any, expected: Any, what: object) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    assert torch.equal(found, expected), f"{what}: {found} instead of {expected}"


def check_all_reduce(place: Place) -> None:
    with world(place) as dist:
        for seed, name in enumerate(OURS + OTHERS):
            dtype = getattr(torch, name)
            for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
                if op == "AVG" and not dtype.is_floating_point:
                    continue
                for shape in SHAPES:
                    tensor = contribution(place.rank, shape, dtype, seed)
                    work = dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=seed % 2 == 0)
                    if work is not None:
                        assert work.wait() and work.is_completed() and work.is_success()
                    same(tensor, reduced(op, shape, dtype, place.size, seed), (name, op, shape))
        flag = torch.tensor([place.rank == 0, False, True])
        dist.all_reduce(flag, dist.ReduceOp.BOR)
        assert flag.tolist() == [True, False, True]
        number = torch.tensor([1 + 2j]) * (place.rank + 1)
        dist.all_reduce(number)
        assert number.item() == (1 + 2j) * sum(range(1, place.size + 1))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_reduce(size: int) -> None:
    ranks.run(check_all_reduce, size)
