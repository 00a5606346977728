"""Lightning: DDPStrategy takes the name of the backend. One line.

    pip install lightning
    python examples/train_lightning.py                                          starts its two ranks itself
    torchrun --standalone --nproc-per-node 2 examples/train_lightning.py        the same under torchrun
    python examples/train_lightning.py --door hook                              gradients only

Lightning 2.6 ignores DDPStrategy(ddp_comm_hook=...) on CPUs without a word; the callback below does not.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

import tailcut

STEPS, ROWS = 60, 64


class Curve(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        (x,) = batch
        loss = nn.functional.mse_loss(self.net(x), torch.sin(x))
        if self.global_rank == 0 and number % 10 == 9:
            print(f"step {number + 1} loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Hook(lightning.Callback):
    """The gradients of the trainer's model through tailcut, and its state in the trainer's checkpoints."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.attached = tailcut.attach(trainer.model)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["tailcut"] = self.attached.state_dict()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--door", choices=["gloo", "backend", "hook"], default="backend")
    door = parser.parse_args().door
    lightning.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(torch.rand(2 * STEPS * ROWS, 1) * 6 - 3)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="tailcut" if door == "backend" else "gloo"),
        callbacks=[Hook()] if door == "hook" else [],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Curve(), torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=False))
    if trainer.global_rank == 0:
        print(f"backend {torch.distributed.get_backend()}, door {door}", flush=True)


if __name__ == "__main__":
    main()
