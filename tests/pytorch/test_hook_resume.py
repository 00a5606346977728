"""A training that was killed and goes on from its checkpoint ends as one that was never disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

from tailcut.errors import Misuse
from tailcut.pytorch.buckets import Buckets

pytestmark = pytest.mark.timeout(150)  # importing torch in every rank takes long on a busy machine

SCRIPT = Path(__file__).with_name("resuming.py")


def test_a_killed_rank_an_elastic_restart_and_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", str(SCRIPT), str(tmp_path)]
    paths = [str(SCRIPT.parents[1]), *(entry for entry in sys.path if entry)]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["life"] == 1, "nobody was killed"
    assert first["resumed"] == first["whole"], "the bits differ"
    assert first["step"] == 6
    assert "exitcode: -9" in done.stderr


class Parameter:
    """Buckets only look at which one it is."""


def named(count: int) -> tuple[list[Parameter], Buckets]:
    parameters = [Parameter() for _ in range(count)]
    return parameters, Buckets({id(each): f"p{at}" for at, each in enumerate(parameters)}, first_tag=100)


def test_state_follows_the_parameters_through_a_rebuild_and_a_checkpoint() -> None:
    (a, b, c), buckets = named(3)
    for _ in range(2):
        assert buckets.enter(0, [a, b], 20).tag == 100
        assert buckets.enter(1, [c], 10).tag == 101
        buckets.step += 1
    assert buckets.epoch == 0
    for _ in range(3):
        buckets.enter(0, [c], 10)
        buckets.enter(1, [b, a], 20)
        buckets.step += 1
    assert buckets.epoch == 1, "one rebuild, though both places changed"
    assert [(each.parameters, each.tag, each.steps) for each in buckets] == [
        (("p2",), 100, 5),
        (("p1", "p0"), 101, 3),
    ]
    state = json.loads(json.dumps(buckets.state_dict()))
    (a, b, c), after = named(3)
    after.load_state_dict(state)
    assert after.step == 5
    assert after.enter(0, [a, b], 20).steps == 3 and after.enter(1, [c], 10).steps == 6


def test_a_bucket_less_or_more_is_an_epoch_too() -> None:
    (a, b, c), buckets = named(3)
    for sets in ([[a], [b], [c]], [[a], [b, c]], [[a], [b], [c]]):
        for place, parameters in enumerate(sets):
            buckets.enter(place, parameters, 1)
    assert buckets.epoch == 2
    assert [each.tag for each in buckets] == [100, 101, 102]


def test_the_state_of_another_model_is_refused_and_changes_nothing() -> None:
    (a, b, c), buckets = named(3)
    buckets.enter(0, [a, b, c], 3)
    buckets.step = 1
    state = buckets.state_dict()
    _, smaller = named(2)
    with pytest.raises(Misuse, match="no parameter 'p2'"):
        smaller.load_state_dict(state)
    with pytest.raises(Misuse, match="has version 99"):
        smaller.load_state_dict({**state, "version": 99})
    assert smaller.state_dict() == Buckets({}).state_dict()
