"""A training that saves after every step, for torchrun: rank 1 is killed in the middle of its first life.

torchrun --standalone --nproc-per-node 2 --max-restarts 1 resuming.py FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tailcut
from pytorch import training

STEPS, DIES_AT = 6, 3


def train(folder: Path | None) -> tuple[DistributedDataParallel, dict[str, Any]]:
    """With a folder: goes on from the checkpoint there, and may die. Without: in one go."""
    rank = dist.get_rank()
    model = DistributedDataParallel(training.net(), bucket_cap_mb=training.BUCKET_MB)
    optim = training.optimizer(model)
    with tailcut.attach(model, config=tailcut.Config(socket_ifname="=lo", liveness_s=1.0)) as attached:
        checkpoint = folder / "checkpoint" if folder else None
        if checkpoint and checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.module.load_state_dict(saved["model"])
            optim.load_state_dict(saved["optim"])
            attached.load_state_dict(saved["tailcut"])
        elif checkpoint and rank == 1:
            middle = list(model.module.parameters())[training.LAYERS]
            middle.register_hook(
                lambda _: os.kill(os.getpid(), signal.SIGKILL) if attached.step == DIES_AT else None
            )
        while attached.step < STEPS:
            training.step_of(model, optim, training.batch(attached.step, rank))
            if checkpoint and rank == 0:
                state = {"model": model.module.state_dict(), "optim": optim.state_dict()}
                torch.save({**state, "tailcut": attached.state_dict()}, checkpoint)
            dist.barrier()  # nobody dies before the checkpoint is written
        return model, attached.state_dict()


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    # A store for each life: torchrun's outlives them, and Gloo sometimes finds addresses of the dead in it.
    life, rank, size = (
        int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE")
    )
    store = dist.FileStore(str(folder / f"store{life}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    resumed, state = train(folder)
    whole, _ = train(None)
    about = {
        "life": life,
        "resumed": training.digest(resumed.module),
        "whole": training.digest(whole.module),
        "step": state["step"],
        "bucket_steps": sum(bucket["steps"] for bucket in state["buckets"]),
        "buckets": len(state["buckets"]),
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(about))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
