"""Ray Train: TorchConfig takes the name of the backend. One line.

    pip install "ray[train]"
    python examples/train_ray.py                  starts Ray on this machine, with two workers
    python examples/train_ray.py --door hook      gradients only

On a cluster, tailcut must be installed on every node; nothing else changes.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from torch import nn

import tailcut

STEPS, ROWS = 60, 64


def train(config: dict[str, Any]) -> None:
    """What each worker does. Ray has made the process group already."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = ray.train.torch.prepare_model(model)  # wraps it in DDP
    if config["door"] == "hook":
        tailcut.attach(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.rand(ROWS, 1, generator=generator) * 6 - 3
        loss = nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            ray.train.report({"step": step + 1, "loss": loss.item(), "backend": dist.get_backend()})
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    if rank == 0:
        print(f"backend {dist.get_backend()}, door {config['door']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", choices=["gloo", "backend", "hook"], default="backend")
    parser.add_argument("--storage", default="/tmp/tailcut-ray", help="where Ray keeps results")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False)
    backend = "tailcut" if options.door == "backend" else "gloo"
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"door": options.door},
        torch_config=ray.train.torch.TorchConfig(backend=backend),
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
        run_config=ray.train.RunConfig(storage_path=options.storage),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
