"""Trains a small GPT with DDP on text that every machine has: the source of Python's standard library.

    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py --backend gloo
    torchrun --standalone --nproc-per-node 4 examples/train_gpt.py --backend tailcut
    python examples/demo.py             both, one after the other, compared

Nothing but the name of the backend differs between the two. Bytes are the tokens, 1.3 million parameters,
one thread for each rank; the same seed gives the same batches. --record FOLDER keeps what each rank measured.
"""

# No postponed annotations here: DDP looks at those of a hook, and text is not what it expects.
import argparse
import hashlib
import json
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 160, 4, 4, 6
TEXT_BYTES = 4 << 20
BUCKET_MB = 2  # several buckets, so that AllReduce begins while the backward pass still runs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.think(self.between(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.guess = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return self.guess(self.norm(self.blocks(self.token(tokens) + self.place(places))))


class Watch:
    """A DDP hook that takes the mean over ranks and notes when each bucket's AllReduce began and ended.

    From the moment this rank's gradients are ready until their mean is there: waiting for others is in it.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self._works: list[Any] = []

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer().div_(dist.get_world_size())
        begin = time.monotonic_ns()
        work = dist.all_reduce(gradients, async_op=True)
        self._works.append(work)

        def ended(future: Any) -> Tensor:
            self.spans.append((begin, time.monotonic_ns()))
            return gradients

        return work.get_future().then(ended)

    def finish(self) -> tuple[int, int]:
        """(when the step's first AllReduce began, how long at least one was under way), in ns.

        Raises the error of an operation that failed: a hook's future cannot carry it.
        """
        for work in self._works:
            work.wait()
        total = end = 0
        first = min(begin for begin, _ in self.spans)
        for begin, stop in sorted(self.spans):
            total += max(0, stop - max(begin, end))
            end = max(end, stop)
        self.spans, self._works = [], []
        return first, total


def read_text() -> Tensor:
    """The standard library's source, in a fixed order."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_BYTES:
            break
    return torch.frombuffer(text, dtype=torch.uint8).long()


def batch_of(text: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """This rank's windows of the text, and the same one byte later."""
    number = (seed * 1_000_003 + step) * dist.get_world_size() + dist.get_rank()
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=torch.Generator().manual_seed(number))
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def train(steps: int, seed: int) -> dict[str, Any]:
    """Per step: its time, the time in AllReduce, when that began, and the loss; at the end a digest."""
    torch.manual_seed(seed)
    text, watch = read_text(), Watch()
    model = DistributedDataParallel(GPT(), bucket_cap_mb=BUCKET_MB)
    model.register_comm_hook(None, watch.hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = []
    for step in range(steps):
        begin = time.monotonic_ns()
        tokens, following = batch_of(text, seed, step)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        first, reducing = watch.finish()
        optimizer.step()
        rows.append((time.monotonic_ns() - begin, reducing, first, loss.item()))
        if dist.get_rank() == 0:
            print(f"step {step + 1}/{steps} loss {loss.item():.3f}", flush=True)
    state = b"".join(value.numpy().tobytes() for value in model.module.state_dict().values())
    digest = hashlib.sha256(state).hexdigest()
    count = sum(parameter.numel() for parameter in model.parameters())
    names = ("step_ns", "reducing_ns", "began_ns", "loss")
    return {"parameters": count, "digest": digest, **dict(zip(names, zip(*rows, strict=True), strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="tailcut", choices=["gloo", "tailcut"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="folder for a JSON file of each rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(options.backend)
    measured = train(options.steps, options.seed)
    if options.record:
        path = options.record / f"{dist.get_rank()}.json"
        path.write_text(json.dumps({"rank": dist.get_rank(), "torch": torch.__version__, **measured}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
