"""A job for torchrun whose rank 1 dies in its first life; in the second all is well.

torchrun --standalone --nproc-per-node 2 --max-restarts 1 restarted.py FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(folder: Path) -> None:
    dist.init_process_group("tailcut", timeout=timedelta(seconds=20))
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    values = []
    for step in range(5):
        if (rank, life, step) == (1, 0, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        tensor = torch.full((10_000,), rank + step + 1.0)
        dist.all_reduce(tensor)
        values.append(tensor.mean().item())
    said = {"life": life, "group": dist.group.WORLD.group.id, "values": values}
    (folder / f"rank{rank}-life{life}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
