"""Hugging Face Accelerate: make the process group before the Accelerator, which takes over what is there.

    pip install accelerate
    torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py                  the backend
    torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py --door hook      gradients only

InitProcessGroupKwargs(backend="tailcut") is refused by Accelerate 1.15, which knows a fixed list of names.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

import tailcut

STEPS, ROWS = 60, 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", choices=["gloo", "backend", "hook"], default="backend")
    door = parser.parse_args().door

    dist.init_process_group("tailcut" if door == "backend" else "gloo")  # before the Accelerator
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    data = torch.utils.data.TensorDataset(torch.rand(2 * STEPS * ROWS, 1) * 6 - 3)
    model, optimizer, batches = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-2),
        torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=False),
    )
    if door == "hook":
        tailcut.attach(model)  # what prepare gave back is the DDP model

    for step, (x,) in enumerate(batches):
        loss = nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process and step % 10 == 9:
            print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
    if accelerator.is_main_process:
        print(f"backend {dist.get_backend()}, door {door}", flush=True)
    accelerator.end_training()  # destroys the process group, too


if __name__ == "__main__":
    main()
