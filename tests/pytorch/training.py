"""Small trainings on several ranks, and the same by one process without any communication."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ranks import Place

WIDTH = 32
LAYERS = 10
ROWS = 4  # of a batch
# So small that every layer's weight fills a bucket: about as many buckets as layers.
BUCKET_MB = WIDTH * WIDTH * 4 / 2**20
TOLERANCE = 1e-6  # of parameters after some steps in float32, beside a sum in another order


@contextlib.contextmanager
def world(place: Place, store: str, backend: str = "gloo") -> Iterator[None]:
    """A process group of all ranks; `store` is the path of a file that does not exist yet."""
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, place.size),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=20),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def net(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers).to(dtype)


class Branches(nn.Module):
    """Uses one of its two branches, which one depends on the step: parameters are unused now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.first = net(seed=1)[:4]
        self.second = net(seed=2)[:4]
        self.last = nn.Linear(WIDTH, WIDTH)
        self.step = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        branch = self.second if self.step % 3 == 1 else self.first
        return self.last(branch(batch))


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(ROWS, WIDTH, generator=generator).to(dtype)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.float().pow(2).mean()


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def step_of(model: nn.Module, optim: torch.optim.Optimizer, data: torch.Tensor) -> float:
    optim.zero_grad()
    loss = loss_of(model(data))
    loss.backward()
    optim.step()
    return float(loss.detach())


def trained_alone(
    model: nn.Module, size: int, steps: int, before: Callable[[nn.Module, int], None] | None = None
) -> list[list[float]]:
    """Parameters after training with the mean of all ranks' gradients, by one process."""
    optim = optimizer(model)
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        if before is not None:
            before(model, step)
        optim.zero_grad()
        for rank in range(size):
            (loss_of(model(batch(step, rank, dtype))) / size).backward()
        optim.step()
    return values(model)


def values(model: nn.Module) -> list[list[float]]:
    return [parameter.detach().double().flatten().tolist() for parameter in model.parameters()]


def digest(model: nn.Module) -> str:
    """Of the bits of all parameters: equal on all ranks, to the last bit."""
    parts = [parameter.detach().float().numpy().tobytes() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def distance(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """The largest difference between two parameters."""
    assert [len(each) for each in ours] == [len(each) for each in theirs]
    return max(
        abs(a - b) for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True)
    )


def check(values_by_rank: list[dict[str, Any]], reference: list[list[float]], tolerance: float) -> None:
    """What the ranks of a case returned: near the reference, and bit-identical among themselves."""
    assert len({each["digest"] for each in values_by_rank}) == 1, "ranks differ"
    far = distance(values_by_rank[0]["values"], reference)
    assert far <= tolerance, f"{far} from the reference"
