"""What goes wrong on the backend tailcut reaches the caller with type and rank, and life goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import ranks
import tailcut
from pytorch.worlds import enter, world
from ranks import Place

torch = pytest.importorskip("torch")
LIVENESS = {"TAILCUT_LIVENESS_S": "1"}


def network(bucket_cap_mb: float = 0.03) -> Any:
    """About five buckets."""
    layers = [torch.nn.Linear(64, 64) for _ in range(10)]
    return torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb
    )


def step(model: Any) -> None:
    model.zero_grad()
    model(torch.ones(4, 64)).sum().backward()


def die_in_backward(place: Place, folder: str) -> tuple[str, float, float]:
    """Three ranks train; rank 1 is killed in the middle of backward. The others go on as a world of two."""
    import torch.distributed as dist

    enter(place)
    model = network()
    for _ in range(3):
        step(model)
    if place.rank == 1:
        middle = list(model.module)[4].weight
        middle.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    begun = time.monotonic()
    with pytest.raises(tailcut.PeerLost) as caught:
        step(model)
    took_s = time.monotonic() - begun
    assert caught.value.ranks == (1,)
    begun = time.monotonic()
    dist.destroy_process_group()
    closing_s = time.monotonic() - begun
    rank = {0: 0, 2: 1}[place.rank]
    dist.init_process_group("tailcut", init_method=f"file://{folder}/second", rank=rank, world_size=2)
    tensor = torch.full((1000,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [3.0]
    model = network()
    step(model)
    dist.destroy_process_group()
    return str(caught.value), took_s, closing_s


def test_a_killed_rank_is_named_out_of_backward_and_the_others_go_on(tmp_path: Path) -> None:
    ended = ranks.reports(die_in_backward, 3, str(tmp_path), environ=LIVENESS, timeout_s=50)
    assert ended[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        assert not ended[rank].failed, ended[rank].text()
        text, took_s, closing_s = ended[rank].value
        assert "rank 1 was lost" in text
        assert 0.5 < took_s < 5 and closing_s < 3


def calls_that_fail(place: Place) -> None:
    with world(place, timeout=timedelta(seconds=15)) as dist:
        group = dist.new_group(timeout=timedelta(seconds=1))
        if place.rank == 0:  # nobody else comes
            begun = time.monotonic()
            with pytest.raises(tailcut.CollectiveTimeout) as caught:
                dist.all_reduce(torch.ones(100), group=group)
            assert 0.9 < time.monotonic() - begun < 3
            assert caught.value.ranks == (1,)
        dist.barrier()
        group = dist.new_group()
        work = dist.all_reduce(torch.ones(100 + place.rank), group=group, async_op=True)
        with pytest.raises(tailcut.Mismatch, match="length is"):
            work.wait()
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), tailcut.Mismatch)
        assert len(work.get_future().wait()) == 1  # completes, and carries no exception
        group = dist.new_group()
        options = dist.distributed_c10d.AllreduceOptions()
        options.timeout = timedelta(seconds=1)
        if place.rank == 0:
            with pytest.raises(tailcut.CollectiveTimeout):
                group.allreduce([torch.ones(3)], options).wait()
        dist.barrier()
        group = dist.new_group()
        if place.rank == 0:
            late = dist.all_reduce(tensor := torch.ones(3), group=group, async_op=True)
            with pytest.raises(tailcut.CollectiveTimeout, match="still runs"):
                late.wait(timedelta(seconds=0.2))
            dist.barrier()
        else:
            dist.barrier()
            late = dist.all_reduce(tensor := torch.ones(3), group=group, async_op=True)
        late.wait()
        assert tensor.tolist() == [2.0] * 3
        group = dist.new_group()
        dist.destroy_process_group(group)
        with pytest.raises(tailcut.GroupClosed):
            group.allreduce([torch.ones(3)]).wait()


def test_errors_have_types_and_timeouts_hold() -> None:
    ranks.run(calls_that_fail, 2, timeout_s=50)


def live_many_lives(place: Place) -> list[int]:
    """destroy + init in one process, again and again, on one store that remembers the lives before."""
    import torch.distributed as dist

    enter(place)  # keeps the store of the first world alive, as an agent's would be
    host, _, port = place.rendezvous.removeprefix("tcp://").rpartition(":")
    store = dist.TCPStore(host, int(port) + 1, place.size, place.rank == 0, timeout=timedelta(seconds=10))
    dist.destroy_process_group()
    ids = []
    for life in range(4):
        dist.init_process_group(
            "tailcut",
            store=dist.PrefixStore(f"life{life // 2 * 2}", store),
            rank=place.rank,
            world_size=place.size,
        )
        ids.append(dist.group.WORLD.group.id)
        tensor = torch.full((5,), float(life))
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0 * life] * 5
        assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0] is tensor
        dist.barrier()
        dist.destroy_process_group()
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("tailcut")]
        assert left == []
    return ids


def test_destroy_and_init_again() -> None:
    first, second = ranks.run(live_many_lives, 2, timeout_s=50)
    assert first == second and len(set(first)) == 4


def test_a_restart_under_torchrun(tmp_path: Path) -> None:
    """The agent's store survives the death of its ranks, with all they had written there."""
    script = Path(__file__).with_name("restarted.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", str(script), str(tmp_path)]
    environ = {**os.environ, **LIVENESS, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environ["TAILCUT_SOCKET_IFNAME"] = "=lo"
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "exitcode: -9" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0-life1.json", "rank1-life1.json"]
    first, second = (json.loads((tmp_path / f"rank{rank}-life1.json").read_text()) for rank in range(2))
    assert first == second
    assert first["values"] == [3.0 + 2 * step for step in range(5)]
