"""Tensors on a GPU through the backend tailcut: values, streams, futures, DDP. Skipped without CUDA.

Self-contained, so that it can run on a borrowed machine: two ranks share one GPU.

    python -m pytest -q tests/pytorch/test_cuda.py        or        python tests/pytorch/test_cuda.py
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA on this machine"),
    pytest.mark.timeout(180),
]
SIZE = 2
OURS = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")


def filled(rank: int, length: int, dtype: str = "float32") -> Any:
    return (torch.arange(length, device="cuda") % 5 + rank).to(getattr(torch, dtype))


def check_all_reduce(rank: int, dist: Any) -> None:
    for dtype in OURS:
        for length in (0, 1, 1000, 1_000_003):
            expected = filled(0, length, dtype) + filled(1, length, dtype)
            tensor = filled(rank, length, dtype)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, expected), (dtype, length)
            tensor = filled(rank, length, dtype)
            dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True).wait()
            assert torch.equal(tensor, filled(1, length, dtype)), (dtype, length)
    tensor = filled(rank, 12).view(3, 4).t()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, (filled(0, 12) + filled(1, 12)).view(3, 4).t())


def check_streams(rank: int, dist: Any) -> None:
    """Slow kernels before and after, on the caller's stream: nothing may read or write too early."""
    square = torch.randn(1024, 1024, device="cuda")
    for _ in range(5):
        tensor = torch.zeros(1 << 20, device="cuda")
        for _ in range(50):
            square = (square @ square).clamp(-1, 1)
        tensor += rank + 1  # only after the slow kernels
        dist.all_reduce(tensor)
        doubled = tensor * 2  # must see the sum
        assert doubled.unique().tolist() == [6.0]
        works, tensors = [], []
        for at in range(4):
            each = torch.full((1 << 18,), float(rank + at), device="cuda")
            tensors.append(each)
            works.append(dist.all_reduce(each, async_op=True))
        for at, (work, each) in enumerate(zip(works, tensors, strict=True)):
            work.wait()
            assert each.unique().tolist() == [1.0 + 2 * at]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = torch.full((1 << 20,), rank + 1.0, device="cuda")
        dist.all_reduce(tensor)
        tensor += 1
    side.synchronize()
    assert tensor.unique().tolist() == [4.0]


def check_gathers(rank: int, dist: Any) -> None:
    for dtype in ("float32", "int8", "bool"):
        own = filled(rank, 1000, dtype)
        apart = [torch.empty_like(own) for _ in range(SIZE)]
        dist.all_gather(apart, own)
        assert all(torch.equal(each, filled(at, 1000, dtype)) for at, each in enumerate(apart)), dtype
        one = torch.empty(SIZE * 1000, dtype=own.dtype, device="cuda")
        dist.all_gather_into_tensor(one, own, async_op=True).wait()
        assert torch.equal(one, torch.cat([filled(at, 1000, dtype) for at in range(SIZE)])), dtype
    output = torch.empty(500, device="cuda")
    dist.reduce_scatter_tensor(output, filled(rank, 1000))
    expected = (filled(0, 1000) + filled(1, 1000)).view(SIZE, 500)[rank]
    assert torch.equal(output, expected)
    output = torch.empty(500, device="cuda")
    dist.reduce_scatter(output, list(filled(rank, 1000).clone().view(SIZE, 500).unbind(0)))
    assert torch.equal(output, expected)


def check_futures(rank: int, dist: Any) -> None:
    for _ in range(10):
        tensor = torch.full((1 << 18,), rank + 1.0, device="cuda")
        work = dist.all_reduce(tensor, async_op=True)
        plus = work.get_future().then(lambda done: done.value()[0] + 1)
        assert plus.wait().unique().tolist() == [4.0]
        assert work.is_completed() and work.is_success()


def check_both_memories(rank: int, dist: Any) -> None:
    """Tensors on the CPU and on the GPU, in flight together."""
    works, tensors = [], []
    for at in range(20):
        device = "cuda" if at % 2 else "cpu"
        tensors.append(torch.full((10_000 + at,), float(rank + at), device=device))
        works.append(dist.all_reduce(tensors[-1], async_op=True))
    for at, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert tensor.unique().tolist() == [1.0 + 2 * at]


def check_gloo(rank: int, dist: Any) -> None:
    tensor = torch.full((10,), float(rank), device="cuda")
    dist.broadcast(tensor, src=1)
    assert tensor.tolist() == [1.0] * 10
    found = torch.zeros(3, device="cuda")
    sent = torch.full((3,), rank + 5.0, device="cuda")
    operations = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, found, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert found.tolist() == [6.0 - rank] * 3
    said: list[Any] = [None] * SIZE
    dist.all_gather_object(said, rank)
    assert said == [0, 1]
    dist.barrier()


def check_ddp(rank: int, dist: Any) -> None:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(128, 128), torch.nn.Tanh()] * 4
    alone = torch.nn.Sequential(*layers, torch.nn.Linear(128, 4)).double().cuda()
    wanted = []
    inputs = [torch.randn(8, 128, dtype=torch.float64, device="cuda") for _ in range(SIZE)]
    (sum(alone(each).square().sum() for each in inputs) / SIZE).backward()
    wanted = [parameter.grad.clone() for parameter in alone.parameters()]
    alone.zero_grad()
    model = torch.nn.parallel.DistributedDataParallel(alone, device_ids=[0], bucket_cap_mb=0.2)
    for _ in range(3):
        model.zero_grad()
        model(inputs[rank]).square().sum().backward()
        for parameter, expected in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, expected)


def check_nccl_beside(rank: int, dist: Any) -> None:
    """Groups of one rank, because NCCL takes no two ranks on one GPU."""
    own = dist.new_group([0], backend="cpu:tailcut,cuda:nccl")
    dist.new_group([1], backend="cpu:tailcut,cuda:nccl")
    if rank:
        return
    assert "nccl" in own._get_backend(torch.device("cuda")).name()
    for device in ("cuda", "cpu"):
        tensor = torch.full((1000,), 3.0, device=device)
        dist.all_reduce(tensor, group=own)
        assert tensor.unique().tolist() == [3.0], device


CHECKS = [
    check_nccl_beside,
    check_all_reduce,
    check_streams,
    check_gathers,
    check_futures,
    check_both_memories,
    check_gloo,
    check_ddp,
]


def rank_main(rank: int, port: int, name: str, errors: Any) -> None:
    """One rank; what goes wrong is put on the queue."""
    import torch.distributed as dist

    from tailcut.pytorch.autoload import autoload

    autoload()  # where tailcut lies on the path without being installed
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(SIZE))
    os.environ.update(TAILCUT_SOCKET_IFNAME="=lo", GLOO_SOCKET_IFNAME="lo")
    try:
        torch.cuda.set_device(0)
        dist.init_process_group("tailcut", timeout=timedelta(seconds=60))
        check: Callable[[int, Any], None] = globals()[name]
        check(rank, dist)
        torch.cuda.synchronize()
        dist.destroy_process_group()
        errors.put("")
    except BaseException:
        errors.put(f"rank {rank}: {traceback.format_exc()}")


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_a_gpu(name: str) -> None:
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    errors = context.Queue()
    running = [context.Process(target=rank_main, args=(rank, port, name, errors)) for rank in range(SIZE)]
    for process in running:
        process.start()
    try:
        said = [errors.get(timeout=120) for _ in running]
    finally:
        for process in running:
            process.join(10)
            process.kill()
            process.join(10)
    assert said == ["", ""], "\n".join(said)


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", __file__]))
