"""Plain DDP under torchrun, by both doors. One line is tailcut's; the rest is any DDP training.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py                   Gloo, to compare
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --door backend    every collective
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --door hook       gradients only

The three print the same losses. Several hosts: docs/how-to/ddp.md.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tailcut

STEPS, ROWS = 60, 64


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on a curve; every rank draws its own."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.rand(ROWS, 1, generator=generator) * 6 - 3
    return x, torch.sin(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", choices=["gloo", "backend", "hook"], default="gloo")
    door = parser.parse_args().door

    dist.init_process_group("tailcut" if door == "backend" else "gloo")  # door 1: the name, no import needed
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    if door == "hook":
        tailcut.attach(model)  # door 2: the gradients of this model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step in range(STEPS):
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
