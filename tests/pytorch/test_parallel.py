"""DDP, FSDP2, HSDP and new groups on the backend tailcut: gradients against one process alone."""

from __future__ import annotations

from typing import Any

import pytest

import ranks
from pytorch.worlds import world
from ranks import Place

torch = pytest.importorskip("torch")
WIDTH, BATCH, STEPS = 24, 2, 3


def model() -> Any:
    torch.manual_seed(7)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 3)).double()


def batch(step: int, rank: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)


def loss_of(network: Any, inputs: Any) -> Any:
    return network(inputs).square().sum()


def train(network: Any, parts: Any) -> list[Any]:
    """Gradients of each step; `parts(step)` gives the batches of this process."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = parts(step)
        (sum(loss_of(network, each) for each in inputs) / len(inputs)).backward()
        seen.append([parameter.grad.detach().clone() for parameter in network.parameters()])
        optimizer.step()
    return seen


def expected(size: int) -> list[Any]:
    return train(model(), lambda step: [batch(step, rank) for rank in range(size)])


def close(found: list[Any], wanted: list[Any], what: str) -> None:
    for step, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            place = f"{what}, step {step}, parameter {at}"
            torch.testing.assert_close(one, other, msg=f"{place}: {one} instead of {other}")


def check_ddp(place: Place, dist: Any) -> None:
    wanted = expected(place.size)
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.003}):
        network = torch.nn.parallel.DistributedDataParallel(model(), **options)
        found = train(network, lambda step: [batch(step, place.rank)])
        close(found, wanted, f"DDP {options}")
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    network = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.003)
    network.register_comm_hook(None, default_hooks.allreduce_hook)
    close(train(network, lambda step: [batch(step, place.rank)]), wanted, "DDP with PyTorch's hook")


def check_power_sgd(place: Place, dist: Any) -> None:
    """Its callbacks start collectives and wait for their futures."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    network = torch.nn.parallel.DistributedDataParallel(model())
    state = power.PowerSGDState(dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2)
    network.register_comm_hook(state, power.powerSGD_hook)
    found = train(network, lambda step: [batch(step, place.rank)])
    gathered = [torch.empty_like(found[-1][0]) for _ in range(place.size)]
    dist.all_gather(gathered, found[-1][0])
    assert all(torch.equal(gathered[0], each) for each in gathered)
    assert gathered[0].abs().sum() > 0


def check_fully_sharded(place: Place, dist: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    network = model()
    for layer in network:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(network)
    compare_sharded(network, place, "FSDP2")


def check_hybrid(place: Place, dist: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("replicas", "shards"), backend_override={"replicas": "tailcut"}
    )
    network = model()
    fully_shard(network, mesh=mesh)
    before = mesh.get_group("replicas").group.counters()["packets_sent"]
    compare_sharded(network, place, "HSDP")
    assert mesh.get_group("replicas").group.counters()["packets_sent"] > before, "its all-reduce is not ours"


def compare_sharded(network: Any, place: Place, what: str) -> None:
    wanted = expected(place.size)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(network, batch(step, place.rank)).backward()
        found = [parameter.grad.full_tensor() for parameter in network.parameters()]
        close([found], [wanted[step]], what)
        optimizer.step()


def check_groups(place: Place, dist: Any) -> None:
    """Two halves work at the same time, in a group each; then all together."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = halves[place.rank // 2]
    tensor = torch.full((1000,), float(place.rank))
    dist.all_reduce(tensor, group=own)
    assert tensor.unique().tolist() == [[1.0], [5.0]][place.rank // 2]
    pair = dist.new_group([3, 1])
    if place.rank in (1, 3):
        tensor = torch.full((10,), float(place.rank))
        dist.all_reduce(tensor, group=pair)
        assert tensor.unique().tolist() == [4.0]
        dist.destroy_process_group(pair)
    tensor = torch.ones(7)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [4.0] * 7


def all_checks(place: Place, *checks: Any) -> None:
    with world(place) as dist:
        for check in checks:
            try:
                check(place, dist)
            except BaseException as error:
                raise AssertionError(f"{check.__name__}: {error}") from error


def test_ddp() -> None:
    ranks.run(all_checks, 2, check_ddp, check_power_sgd, timeout_s=55)


def test_groups_and_meshes() -> None:
    ranks.run(all_checks, 4, check_groups, check_fully_sharded, check_hybrid, timeout_s=55)
