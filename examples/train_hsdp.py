"""HSDP: parameters sharded within a host, replicated between hosts; tailcut between hosts, where it is slow.

    torchrun --standalone --nproc-per-node 4 examples/train_hsdp.py

Four ranks stand for two hosts with two devices each. The one line of tailcut's is `backend_override`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, ROWS, HOSTS = 60, 64, 2


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on a curve; every rank draws its own."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.rand(ROWS, 1, generator=generator) * 6 - 3
    return x, torch.sin(x)


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(
        "cpu",
        (HOSTS, size // HOSTS),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": "tailcut"},  # the all-reduce between hosts
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step in range(STEPS):
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    if rank == 0:
        print(f"backend {dist.get_backend(mesh.get_group('replicate'))} between replicas", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
