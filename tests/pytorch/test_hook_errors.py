"""Whatever goes wrong comes out of `backward()` with its type, and names the rank; DDP can go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ranks  # noqa: E402
import tailcut  # noqa: E402
from pytorch import training  # noqa: E402
from ranks import Died, Place  # noqa: E402

pytestmark = pytest.mark.timeout(150)  # importing torch in every rank takes long on a busy machine

LIVENESS_S = 1.0
PATIENCE_S = 120.0


def config(**settings: Any) -> tailcut.Config:
    return tailcut.Config(socket_ifname="=lo", **settings)


def killed_in_backward(place: Place, store: str, static_graph: bool) -> list[tuple[str, float]]:
    """Rank 1 dies in its third backward, with some buckets under way and others not."""
    with training.world(place, store):
        model = DistributedDataParallel(
            training.net(), bucket_cap_mb=training.BUCKET_MB, static_graph=static_graph
        )
        attached = tailcut.attach(model, config=config(liveness_s=LIVENESS_S))
        optim = training.optimizer(model)
        for step in range(2):
            training.step_of(model, optim, training.batch(step, place.rank))
        if place.rank == 1:
            middle = list(model.module.parameters())[training.LAYERS]
            middle.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        said = []
        for step in range(2, 4):  # a dead rank stays dead
            begin = time.monotonic()
            with pytest.raises(tailcut.PeerLost) as caught:
                training.step_of(model, optim, training.batch(step, place.rank))
            assert (caught.value.ranks, caught.value.reason) == ((1,), "peer_dead")
            said.append((str(caught.value), time.monotonic() - begin))
        assert attached.step == 4 and attached.outcomes == ()
        attached.detach()
        training.step_of(model.module, optim, training.batch(4, place.rank))  # the process can go on
        return said


@pytest.mark.parametrize(("size", "static_graph"), [(2, True), (3, False)])
def test_a_rank_killed_in_backward_is_named(tmp_path: Path, size: int, static_graph: bool) -> None:
    for report in ranks.reports(
        killed_in_backward, size, str(tmp_path / "store"), static_graph, timeout_s=PATIENCE_S
    ):
        if report.rank == 1:
            assert isinstance(report.error, Died) and report.exit_code == -signal.SIGKILL
            continue
        assert report.error is None, report.text()
        (first, took), (second, took_again) = report.value
        assert "rank 1 was lost" in first and "rank 1 was lost" in second
        assert took < LIVENESS_S + 2.0, "the rest is a busy test machine"
        assert took_again < 1.0, "what is known needs no waiting"


def errors(place: Place, store: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with training.world(place, store):
        found["misuse"] = misused()
        found["closed"] = closed(place)
        found["sparse"] = sparse()
        found["broken"] = broken(place)
        found["late"] = late(place)
        found["other model"] = other_model(place)
    return found


def misused() -> list[str]:
    said = []
    model = DistributedDataParallel(training.net())
    with pytest.raises(tailcut.Misuse) as caught:
        tailcut.attach(training.net())
    said.append(str(caught.value))
    with tailcut.attach(model, config=config()) as attached:
        for arguments in ({}, {"group": attached.group, "config": config()}):
            with pytest.raises(tailcut.Misuse) as caught:
                tailcut.attach(model, **arguments)
            said.append(str(caught.value))
    with pytest.raises(tailcut.GroupClosed) as closed:
        tailcut.attach(model, group=attached.group)
    said.append(str(closed.value))
    return said


def closed(place: Place) -> list[str]:
    """Two steps after the group was closed, and one after detaching, by DDP's own means."""
    model = DistributedDataParallel(training.net())
    said = []
    with tailcut.attach(model, config=config()) as attached:
        optim = training.optimizer(model)
        training.step_of(model, optim, training.batch(0, place.rank))
        attached.group.close()
        for _ in range(2):
            with pytest.raises(tailcut.GroupClosed) as caught:
                training.step_of(model, optim, training.batch(1, place.rank))
            said.append(str(caught.value))
        assert (attached.step, attached.outcomes) == (3, ())
    training.step_of(model, optim, training.batch(1, place.rank))
    return [*said, training.digest(model.module)]


def sparse() -> str:
    model = DistributedDataParallel(nn.Embedding(8, 4, sparse=True))
    with (
        tailcut.attach(model, config=config(timeout_s=10.0)),
        pytest.raises(tailcut.Misuse) as caught,
    ):
        model(torch.tensor([1, 2])).sum().backward()
    return str(caught.value)


def late(place: Place) -> list[str]:
    """Rank 1 comes too late for one step."""
    model = DistributedDataParallel(training.net(), bucket_cap_mb=training.BUCKET_MB)
    said = []
    with tailcut.attach(model, config=config(), timeout=0.5):
        optim = training.optimizer(model)
        for step in range(4):
            if step == 2 and place.rank == 1:
                time.sleep(1.5)
            try:
                training.step_of(model, optim, training.batch(step, place.rank))
                said.append("")
            except tailcut.TailcutError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def broken(place: Place) -> tuple[str, str, int]:
    """The user's own error in the middle of the second backward, with buckets under way."""
    model = DistributedDataParallel(training.net(), bucket_cap_mb=training.BUCKET_MB)
    said = []
    with tailcut.attach(model, config=config(timeout_s=10.0)) as attached:
        optim = training.optimizer(model)
        training.step_of(model, optim, training.batch(0, place.rank))

        def fail(_: Any) -> None:
            raise ValueError("planted")

        list(model.module.parameters())[training.LAYERS].register_hook(fail)
        for _ in range(2):
            with pytest.raises((ValueError, RuntimeError)) as caught:
                training.step_of(model, optim, training.batch(1, place.rank))
            said.append(f"{type(caught.value).__name__}: {caught.value}")
        return said[0], said[1], attached.step


def other_model(place: Place) -> str:
    model = DistributedDataParallel(training.net())
    model.module.register_parameter(f"extra{place.rank}", nn.Parameter(torch.ones(1)))
    with pytest.raises(tailcut.Mismatch) as caught:
        tailcut.attach(model, config=config())
    return str(caught.value)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks.run(errors, 2, str(tmp_path_factory.mktemp("said") / "store"), timeout_s=PATIENCE_S)


def test_what_cannot_be_attached(said: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(said):
        no_ddp, twice, both, closed = each["misuse"]
        assert "must be a DistributedDataParallel, not Sequential" in no_ddp
        assert "attached already: detach() first" in twice
        assert "give group or config, not both" in both
        assert "the group is closed" in closed
        assert f"rank {1 - rank} attached another model than rank {rank}" in each["other model"]


def test_after_the_group_was_closed_ddp_can_go_on_without_it(said: list[dict[str, Any]]) -> None:
    for first, second, _ in (each["closed"] for each in said):
        assert "the group is closed" in first and first == second
    assert said[0]["closed"][2] == said[1]["closed"][2]


def test_sparse_gradients_are_refused(said: list[dict[str, Any]]) -> None:
    assert all("the gradient is sparse" in each["sparse"] for each in said)


def test_a_rank_that_comes_too_late_is_named_then_and_later(said: list[dict[str, Any]]) -> None:
    for each in said:
        early, again, then, later = each["late"]
        assert (early, again) == ("", "")
        for text in (then, later):
            assert text.startswith("CollectiveTimeout") and "rank 1 has not entered it" in text


def test_an_error_of_the_users_in_backward_stays_theirs(said: list[dict[str, Any]]) -> None:
    for each in said:
        first, second, steps = each["broken"]
        assert first == "ValueError: planted"
        assert second.startswith("RuntimeError: Expected to have finished reduction in the prior iteration")
        assert steps == 1
