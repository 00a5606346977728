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
SHAPES = ((), (0,), (5, 3), (70_001,))


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


def check_all_reduce(place: Place, dist: Any) -> None:
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


def scattered(op: str, shape: tuple[int, ...], dtype: Any, place: Place) -> Any:
    """What this rank gets of the reduced rows, one row for each rank."""
    return reduced(op, (place.size, *shape), dtype, place.size)[place.rank]


def check_gathers(place: Place, dist: Any) -> None:
    for name in (*OURS, *OTHERS, "bool", "complex64", "int16"):
        dtype = getattr(torch, name)
        for shape in SHAPES:
            own = contribution(place.rank, shape, dtype)
            expected = [contribution(rank, shape, dtype) for rank in range(place.size)]
            apart = [torch.empty_like(own) for _ in expected]
            dist.all_gather(apart, own)
            same(torch.stack(apart), torch.stack(expected), (name, shape))
            together = torch.empty((place.size, *shape), dtype=dtype)
            dist.all_gather(list(together.unbind(0)), own, async_op=True).wait()
            same(together, torch.stack(expected), (name, shape, "unbind"))
            one = torch.empty((place.size, *shape), dtype=dtype)
            dist.all_gather_into_tensor(one, own)
            same(one, torch.stack(expected), (name, shape, "into"))
            one[place.rank] = own
            dist.all_gather_into_tensor(one, one[place.rank])  # in place
            same(one, torch.stack(expected), (name, shape, "in place"))


def check_scatters(place: Place, dist: Any) -> None:
    for name in OURS:
        dtype = getattr(torch, name)
        for op in ("SUM", "AVG", "MAX") if dtype.is_floating_point else ("SUM", "MIN", "PRODUCT"):
            for shape in SHAPES:
                given = contribution(place.rank, (place.size, *shape), dtype)
                expected = scattered(op, shape, dtype, place)
                kind = getattr(dist.ReduceOp, op)
                output = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter(output, [each.clone() for each in given], kind)
                same(output, expected, (name, op, shape))
                output = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter(output, list(given.unbind(0)), kind, async_op=True).wait()
                same(output, expected, (name, op, shape, "unbind"))
                output = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter_tensor(output, given, kind)
                same(output, expected, (name, op, shape, "tensor"))
                dist.reduce_scatter_tensor(given[0], given, kind)  # the output overlaps the input
                same(given[0], expected, (name, op, shape, "overlap"))


def check_layouts(place: Place, dist: Any) -> None:
    """What is not contiguous on some ranks only, has a gradient, or overlaps."""
    plain = contribution(place.rank, (6, 4), torch.float32)
    expected = reduced("SUM", (6, 4), torch.float32, place.size)
    tensor = plain if place.rank % 2 else plain.t().contiguous().t()
    dist.all_reduce(tensor)
    same(tensor, expected, "transposed on some ranks")
    wide = torch.full((6, 8), -1.0)
    wide[:, ::2] = contribution(place.rank, (6, 4), torch.float32)
    dist.all_reduce(wide[:, ::2], async_op=True).wait()
    same(wide[:, ::2].clone(), expected, "strided")
    assert (wide[:, 1::2] == -1).all()
    parameter = torch.nn.Parameter(contribution(place.rank, (4, 6), torch.float32).t())
    assert not parameter.is_contiguous()
    parameter.data = contribution(place.rank, (6, 4), torch.float32).t().contiguous().t()
    dist.all_reduce(parameter)
    same(parameter.detach().clone(), expected, "parameter")
    inner = torch.ones(3, requires_grad=True) * (place.rank + 1)
    dist.all_reduce(inner)
    assert inner.tolist() == [sum(range(1, place.size + 1))] * 3
    outputs = [torch.zeros(4, 6).t() for _ in range(place.size)]
    dist.all_gather(outputs, contribution(place.rank, (6, 4), torch.float32))
    for rank, output in enumerate(outputs):
        same(output.contiguous(), contribution(rank, (6, 4), torch.float32), "all_gather")
    # nobody waits: the copy back must happen all the same
    left = contribution(place.rank, (6, 4), torch.float32).t().contiguous().t()
    work = dist.all_reduce(left, async_op=True)
    while not work.is_completed():
        pass
    same(left.contiguous(), expected, "polled")
    for _ in range(20):
        tensor = contribution(place.rank, (6, 4), torch.float32).t().contiguous().t()
        done = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])
        same(done.wait().contiguous(), expected, "future of a copy")


def check_coalesced(place: Place, dist: Any) -> None:
    shapes = [(3,), (2, 5), (), (1000,)]
    own = [contribution(place.rank, shape, torch.float32, seed) for seed, shape in enumerate(shapes)]
    expected = [reduced("SUM", s, torch.float32, place.size, seed) for seed, s in enumerate(shapes)]
    tensors = [each.clone() for each in own]
    dist.all_reduce_coalesced(tensors)
    for found, wanted in zip(tensors, expected, strict=True):
        same(found, wanted, "all_reduce_coalesced")
    tensors = [each.clone() for each in own]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for each in tensors:
            dist.all_reduce(each)
    manager.wait()
    for found, wanted in zip(tensors, expected, strict=True):
        same(found, wanted, "coalescing all_reduce")
    for dtype in (torch.float32, torch.int16):
        mine = [each.to(dtype) for each in own]
        outputs = [torch.zeros((place.size, *shape), dtype=dtype) for shape in shapes]
        with dist.distributed_c10d._coalescing_manager():
            for output, each in zip(outputs, mine, strict=True):
                dist.all_gather_into_tensor(output, each)
        for seed, (shape, output) in enumerate(zip(shapes, outputs, strict=True)):
            parts = [contribution(rank, shape, dtype, seed) for rank in range(place.size)]
            same(output, torch.stack(parts), "coalescing all_gather")
    inputs = [contribution(place.rank, (place.size, *s), torch.float32, i) for i, s in enumerate(shapes)]
    outputs = [torch.zeros(shape) for shape in shapes]
    with dist.distributed_c10d._coalescing_manager():
        for output, each in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, each)
    for seed, (shape, output) in enumerate(zip(shapes, outputs, strict=True)):
        wanted = reduced("SUM", (place.size, *shape), torch.float32, place.size, seed)[place.rank]
        same(output, wanted, "coalescing reduce_scatter")


def check_functional(place: Place, dist: Any) -> None:
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    own = contribution(place.rank, (4, 3), torch.float32)
    found = functional.all_reduce(own, "sum", group)
    same(found + 0, reduced("SUM", (4, 3), torch.float32, place.size), "all_reduce")
    found = functional.all_gather_tensor(own, 0, group) + 0
    parts = [contribution(rank, (4, 3), torch.float32) for rank in range(place.size)]
    same(found, torch.cat(parts), "all_gather")
    rows = contribution(place.rank, (place.size, 3), torch.float32)
    found = functional.reduce_scatter_tensor(rows, "sum", 0, group) + 0
    same(found[0], scattered("SUM", (3,), torch.float32, place), "reduce_scatter")
    found, other = functional.all_reduce_coalesced([own, rows], "sum", group)
    same(found + 0, reduced("SUM", (4, 3), torch.float32, place.size), "coalesced")
    same(other + 0, reduced("SUM", (place.size, 3), torch.float32, place.size), "coalesced")


def check_others(place: Place, dist: Any) -> None:
    """What Gloo serves: present, and right."""
    rank, size = place.rank, place.size
    flag = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flag, dist.ReduceOp.BOR)
    assert flag.tolist() == [True, False, True]
    number = torch.tensor([1 + 2j]) * (rank + 1)
    dist.all_reduce(number)
    assert number.item() == (1 + 2j) * sum(range(1, size + 1))
    with pytest.raises(RuntimeError, match="can't be cast"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG)
    sparse = torch.eye(3).to_sparse() * (rank + 1)
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.eye(3) * sum(range(1, size + 1)))
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, src=1)
    assert tensor.tolist() == [1.0] * 5
    total = torch.ones(3) * (rank + 1)
    dist.reduce(total, dst=0)
    assert rank or total.tolist() == [sum(range(1, size + 1))] * 3
    gathered = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered)
    assert rank or [each[0].item() for each in gathered or []] == list(range(size))
    mine = torch.zeros(2)
    dist.scatter(mine, [torch.full((2,), float(each)) for each in range(size)] if rank == 0 else None)
    assert mine.tolist() == [rank, rank]
    swapped = torch.zeros(size)
    dist.all_to_all_single(swapped, torch.arange(size, dtype=torch.float32) + 10 * rank)
    assert swapped.tolist() == [10 * each + rank for each in range(size)]
    found = torch.zeros(1)
    sends = [dist.P2POp(dist.isend, torch.full((1,), float(rank)), (rank + 1) % size)]
    receives = [dist.P2POp(dist.irecv, found, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(sends + receives):
        work.wait()
    assert found.item() == (rank - 1) % size
    said: list[Any] = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": each} for each in range(size)]
    words: list[Any] = ["hello" if rank == 0 else None]
    dist.broadcast_object_list(words)
    assert words == ["hello"]
    dist.barrier()
    dist.barrier(async_op=True).wait()


def all_checks(place: Place, *checks: Any) -> None:
    with world(place) as dist:
        for check in checks:
            try:
                check(place, dist)
            except BaseException as error:
                raise AssertionError(f"{check.__name__}: {error}") from error


@pytest.mark.parametrize("size", [1, 2])
def test_all_reduce(size: int) -> None:
    ranks.run(all_checks, size, check_all_reduce)


def test_every_collective() -> None:
    checks = (check_all_reduce, check_gathers, check_scatters, check_layouts, check_coalesced)
    ranks.run(all_checks, 3, *checks, check_functional, check_others, timeout_s=55)
