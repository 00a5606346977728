"""Whatever DDP does with its buckets, training through tailcut.attach gives what one process alone gives.

All cases run in one set of processes for each number of ranks, because importing torch takes them longer than
the cases. A case that fails says so in its own test.
"""

from __future__ import annotations

import functools
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ranks  # noqa: E402
import tailcut  # noqa: E402
from pytorch import training  # noqa: E402
from ranks import Place  # noqa: E402

pytestmark = pytest.mark.timeout(150)  # importing torch in every rank takes long on a busy machine

STEPS = 5
SIZES = (2, 4)
HALF = 2e-3  # after some steps with gradients in 16 bits

Found = dict[str, Any]


def ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=training.BUCKET_MB, **options)


def found(model: DistributedDataParallel, attached: Any = None, **more: Any) -> Found:
    about = {"values": training.values(model.module), "digest": training.digest(model.module), **more}
    if attached is not None:
        about |= {"steps": attached.step, "epoch": attached.epoch, "layout": attached.layout}
        about |= {"outcomes": len(attached.outcomes)}
    return about


def train(place: Place, model: DistributedDataParallel, first: int = 0, steps: int = STEPS) -> None:
    optim = training.optimizer(model)
    dtype = next(model.parameters()).dtype
    for step in range(first, first + steps):
        training.step_of(model, optim, training.batch(step, place.rank, dtype))


# ---- the cases, each on every rank


def plain(place: Place, group: tailcut.Group, **options: Any) -> Found:
    model = ddp(training.net(), **options)
    with tailcut.attach(model, group=group) as attached:
        train(place, model)
        return found(model, attached)


static_graph = functools.partial(plain, static_graph=True)
bucket_views = functools.partial(plain, gradient_as_bucket_view=True)
views_and_static = functools.partial(plain, gradient_as_bucket_view=True, static_graph=True)


def own_group(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.net())
    config = tailcut.Config(socket_ifname="=lo", timeout_s=20.0)
    with tailcut.attach(model, config=config) as attached:
        assert attached.group is not group and attached.group.config.timeout_s == 20.0
        train(place, model)
        about = found(model, attached)
    assert attached.group.closed and not group.closed
    return about


def on_our_backend(place: Place, group: tailcut.Group) -> Found:
    """The process group is tailcut's: no second group is formed."""
    process_group = dist.new_group(backend="tailcut")
    model = ddp(training.net(), process_group=process_group)
    with tailcut.attach(model) as attached:
        assert attached.group is process_group.group
        train(place, model)
        about = found(model, attached)
    assert not attached.group.closed
    return about


def unused(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.Branches(), find_unused_parameters=True)
    with tailcut.attach(model, group=group) as attached:
        optim = training.optimizer(model)
        for step in range(STEPS):
            model.module.step = step
            training.step_of(model, optim, training.batch(step, place.rank))
        return found(model, attached)


def accumulated(place: Place, group: tailcut.Group) -> Found:
    """no_sync: two batches without communication, then one with."""
    model = ddp(training.net())
    with tailcut.attach(model, group=group) as attached:
        optim = training.optimizer(model)
        for step in range(STEPS):
            optim.zero_grad()
            with model.no_sync():
                for part in range(2):
                    training.loss_of(model(training.batch(3 * step + part, place.rank))).backward()
            training.loss_of(model(training.batch(3 * step + 2, place.rank))).backward()
            optim.step()
        return found(model, attached)


def half(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.net())
    with tailcut.attach(model, group=group, wrap=fp16_compress_wrapper) as attached:
        train(place, model)
        return found(model, attached)


def bfloat16(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.net(torch.bfloat16))
    with tailcut.attach(model, group=group) as attached:
        train(place, model)
        return found(model, attached)


def two_models(place: Place, group: tailcut.Group) -> Found:
    """One backward through two models, with the second model's input depending on the first."""
    first, second = ddp(training.net()), ddp(training.net(seed=1))
    with tailcut.attach(first, group=group) as one, tailcut.attach(second, group=group) as two:
        optim = training.optimizer(nn.ModuleList([first, second]))
        for step in range(STEPS):
            optim.zero_grad()
            training.loss_of(second(first(training.batch(step, place.rank)))).backward()
            optim.step()
        both = nn.Sequential(first.module, second.module)
        assert one.step == two.step == STEPS and one.epoch == two.epoch == 1
        return {"values": training.values(both), "digest": training.digest(both)}


def later(place: Place, group: tailcut.Group) -> Found:
    """Attached after the first steps, taken off, attached again."""
    model = ddp(training.net())
    optim = training.optimizer(model)
    for step in range(STEPS):
        if step in (1, 4):
            attached = tailcut.attach(model, group=group)
        training.step_of(model, optim, training.batch(step, place.rank))
        if step == 2:
            attached.detach()
            attached.detach()  # harmless
            assert attached.step == 2
    assert attached.step == 1
    attached.detach()
    return found(model)


def reentrant(place: Place, group: tailcut.Group) -> Found:
    """A backward within backward, as activation checkpoints of the older kind have it."""
    inner = training.net()

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, data: Any) -> Any:
            return self.inner[10:](checkpoint(self.inner[:10], data.requires_grad_(), use_reentrant=True))

    model = ddp(Checkpointed())
    with tailcut.attach(model, group=group) as attached:
        train(place, model)
        return found(model, attached)


def waits_within(hook: Any) -> Any:
    """A hook around ours that does not leave the waiting to us, as overlapped optimizers do."""

    def around(state, bucket):  # type: ignore[no-untyped-def]  # DDP would compare annotations
        result = hook(state, bucket)
        doubled = result.then(lambda done: done.value().mul_(2))
        assert doubled.wait() is result.wait()
        return doubled.then(lambda done: done.value().div_(2))

    return around


def waited_for(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.net())
    with tailcut.attach(model, group=group, wrap=waits_within) as attached:
        train(place, model)
        return found(model, attached)


def uneven(place: Place, group: tailcut.Group) -> Found:
    """Ranks run out of data one after the other: DDP's join has them take part with zeros."""
    model = ddp(training.net())
    with tailcut.attach(model, group=group) as attached, model.join():
        train(place, model, steps=STEPS - place.rank)
        return found(model, attached)


def profiled(place: Place, group: tailcut.Group) -> Found:
    model = ddp(training.net())
    with tailcut.attach(model, group=group) as attached:
        train(place, model, steps=STEPS - 1)
        with torch.profiler.profile() as profile:
            train(place, model, first=STEPS - 1, steps=1)
        names = [event.name for event in profile.events()]
        counts = {name: names.count(f"tailcut:{name}") for name in ("all_reduce", "wait")}
        return found(model, attached, counts=counts)


CASES: dict[str, Callable[..., Found]] = {
    "plain": plain,
    "static_graph": static_graph,
    "bucket_views": bucket_views,
    "views_and_static": views_and_static,
    "own_group": own_group,
    "on_our_backend": on_our_backend,
    "unused": unused,
    "accumulated": accumulated,
    "half": half,
    "bfloat16": bfloat16,
    "two_models": two_models,
    "later": later,
    "reentrant": reentrant,
    "waited_for": waited_for,
    "uneven": uneven,
    "profiled": profiled,
}


def all_cases(place: Place, store: str) -> dict[str, Found]:
    results: dict[str, Found] = {}
    with training.world(place, store):
        from tailcut.pytorch.forming import form_group

        with form_group(config=tailcut.Config(socket_ifname="=lo", timeout_s=10.0)) as group:
            for name, case in CASES.items():
                try:
                    results[name] = case(place, group)
                except Exception:
                    results[name] = {"failed": traceback.format_exc()}
    return results


@functools.cache
def results_of(size: int) -> list[dict[str, Found]]:
    with tempfile.TemporaryDirectory() as folder:
        return ranks.run(all_cases, size, str(Path(folder) / "store"), timeout_s=120)


def case_of(name: str, size: int) -> list[Found]:
    by_rank = [each[name] for each in results_of(size)]
    for rank, about in enumerate(by_rank):
        assert "failed" not in about, f"rank {rank}: {about['failed']}"
    return by_rank


# ---- the references


@functools.cache
def alone(size: int, kind: str = "net") -> list[list[float]]:
    if kind == "branches":
        return training.trained_alone(
            training.Branches(), size, STEPS, lambda model, step: setattr(model, "step", step)
        )
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    return training.trained_alone(training.net(dtype), size, STEPS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "static_graph",
        "bucket_views",
        "views_and_static",
        "own_group",
        "on_our_backend",
        "later",
        "reentrant",
        "waited_for",
    ],
)
def test_as_one_process_alone(name: str, size: int) -> None:
    training.check(case_of(name, size), alone(size), training.TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_unused_parameters(size: int) -> None:
    training.check(case_of("unused", size), alone(size, "branches"), training.TOLERANCE)
    assert case_of("unused", size)[0]["epoch"] == 0, "with unused parameters DDP keeps its buckets"


@pytest.mark.parametrize("size", SIZES)
def test_buckets_that_are_filled_anew_begin_an_epoch(size: int) -> None:
    for about in case_of("plain", size) + case_of("static_graph", size):
        assert about["epoch"] == 1 and about["steps"] == STEPS
        named = [name for bucket in about["layout"] for name in bucket]
        assert sorted(named) == sorted(name for name, _ in training.net().named_parameters())
        assert about["outcomes"] == len(about["layout"]) > training.LAYERS / 2
    assert len({str(about["layout"]) for about in case_of("plain", size)}) == 1


@pytest.mark.parametrize("size", SIZES)
def test_no_sync_reduces_once_for_all_batches(size: int) -> None:
    model = training.net()
    optim = training.optimizer(model)
    for step in range(STEPS):
        optim.zero_grad()
        for rank in range(size):
            for part in range(3):
                (training.loss_of(model(training.batch(3 * step + part, rank))) / size).backward()
        optim.step()
    training.check(case_of("accumulated", size), training.values(model), training.TOLERANCE)
    assert case_of("accumulated", size)[0]["steps"] == STEPS


@pytest.mark.parametrize("size", SIZES)
def test_sixteen_bits(size: int) -> None:
    training.check(case_of("half", size), alone(size), HALF)
    assert training.distance(case_of("half", size)[0]["values"], alone(size)) > training.TOLERANCE
    training.check(case_of("bfloat16", size), alone(size, "bfloat16"), 10 * HALF)


@pytest.mark.parametrize("size", SIZES)
def test_two_models_in_one_backward(size: int) -> None:
    both = nn.Sequential(training.net(), training.net(seed=1))
    training.check(case_of("two_models", size), training.trained_alone(both, size, STEPS), training.TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_run_out_of_data(size: int) -> None:
    """A rank without data counts with zero; the mean is over all ranks."""
    model = training.net()
    optim = training.optimizer(model)
    for step in range(STEPS):
        optim.zero_grad()
        for rank in range(size):
            if step < STEPS - rank:
                (training.loss_of(model(training.batch(step, rank))) / size).backward()
        optim.step()
    first = case_of("uneven", size)[0]
    assert training.distance(first["values"], training.values(model)) <= training.TOLERANCE
    assert first["steps"] == STEPS


@pytest.mark.parametrize("size", SIZES)
def test_the_profiler_sees_every_bucket_and_one_wait(size: int) -> None:
    for about in case_of("profiled", size):
        assert about["counts"] == {"all_reduce": len(about["layout"]), "wait": 1}
