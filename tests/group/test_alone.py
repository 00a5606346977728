"""A group of one works without a network, with the same checks as any other; also what `connect` refuses."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import tailcut
from tailcut import GroupClosed, Misuse, RendezvousError


@pytest.fixture
def group() -> Any:
    with tailcut.connect(rank=0, size=1) as alone:
        yield alone


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "prod"])
def test_the_own_contribution_is_the_result(group: tailcut.Group, op: str) -> None:
    array = np.arange(5.0)
    outcome = group.all_reduce(array, op)
    assert array.tolist() == [0, 1, 2, 3, 4]
    assert outcome.complete and outcome.straggler is None and outcome.sequence == 0
    output = np.zeros(5)
    group.reduce_scatter(array, output, op)
    assert output.tolist() == array.tolist()
    output[:] = 0
    assert group.all_gather(array, output).sequence == 2
    assert output.tolist() == array.tolist()
    group.all_gather(array, array)
    assert group.barrier().collective == "barrier"


def test_async(group: tailcut.Group) -> None:
    work = group.all_reduce_async(np.zeros(3))
    assert work.done()
    assert work.wait() is work.wait(1.0)


def test_no_socket_and_no_thread() -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    tasks = len(os.listdir("/proc/self/task"))
    with tailcut.connect(rank=0, size=1, rendezvous="tcp://nowhere.invalid:1") as group:
        group.all_reduce(np.zeros(3))
        assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
        assert len(os.listdir("/proc/self/task")) == tasks


THREE = np.zeros(3)
MISUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str]] = [
    ("all_reduce", (THREE, "mean"), {}, "there is no op 'mean'; known: sum, avg, min, max, prod", "argument"),
    ("all_reduce", (THREE, ["sum"]), {}, "there is no op ['sum']", "argument"),
    ("all_reduce", (THREE,), {"tag": -1}, "a tag must be a whole number from 0 to 65279, not -1", "argument"),
    ("all_reduce", (THREE,), {"tag": 65280}, "not 65280", "argument"),
    ("all_reduce", (THREE,), {"tag": "a"}, "not 'a'", "argument"),
    ("all_reduce", (THREE,), {"timeout": 0}, "a timeout must be a number of seconds above 0", "argument"),
    ("all_reduce", (THREE,), {"timeout": float("nan")}, "not nan", "argument"),
    ("all_reduce", (THREE,), {"timeout": "1"}, "not '1'", "argument"),
    ("all_reduce", (THREE,), {"schedule": "tree"}, "there is no schedule 'tree'; known: auto, ", "argument"),
    ("all_reduce", (THREE,), {"schedule": 7}, "there is no schedule 7", "argument"),
    ("all_reduce", (THREE.astype("f2"),), {"schedule": "ring"}, "would round float16 sums", "argument"),
    ("all_reduce", (b"abc",), {}, "array may not be written to", "read_only"),
    ("all_reduce", ([1.0],), {}, "array is list, not an array", "argument"),
    ("reduce_scatter", (THREE, b"abc"), {}, "output may not be written to", "read_only"),
    ("reduce_scatter", (THREE, THREE.astype("i4")), {}, "input holds float64 and output int32", "dtype"),
    (
        "reduce_scatter",
        (THREE, np.zeros(2)),
        {},
        "output has 2 elements; rank 0's shard of the 3 of",
        "length",
    ),
    ("all_gather", (np.zeros(2), THREE), {}, "input has 2 elements; rank 0's shard of the 3", "length"),
    ("all_gather", (THREE, b"123"), {}, "output may not be written to", "read_only"),
]


@pytest.mark.parametrize(("method", "arguments", "named", "text", "reason"), MISUSED)
def test_misuse_takes_no_sequence_number(
    group: tailcut.Group,
    method: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    text: str,
    reason: str,
) -> None:
    with pytest.raises(Misuse) as caught:
        getattr(group, method)(*arguments, **named)
    assert text in str(caught.value)
    assert caught.value.reason == reason
    assert group.all_reduce(np.zeros(1)).sequence == 0


def test_shared_memory_is_refused(group: tailcut.Group) -> None:
    array = np.zeros(4)
    with pytest.raises(Misuse, match="input and output share memory"):
        group.reduce_scatter(array[:3], array[1:])
    with pytest.raises(Misuse, match="input and output share memory"):
        group.reduce_scatter(array, array)
    with pytest.raises(Misuse, match="input and output share memory"):
        group.all_gather(array[1:], array[:3])


def test_closed() -> None:
    group = tailcut.connect(rank=0, size=1)
    assert not group.closed
    assert group.close() and group.close()
    assert group.closed and "closed" in repr(group)
    with pytest.raises(GroupClosed, match="the group is closed"):
        group.all_reduce(np.zeros(1))
    with pytest.raises(GroupClosed):
        group.barrier()


def gather(payload: bytes) -> list[bytes]:
    return [payload]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 0, "size": 0}, "size must be a whole number from 1 to 65535, not 0"),
        ({"rank": 0, "size": 70000}, "size must be"),
        ({"rank": 0, "size": "2"}, "size must be"),
        ({"rank": 0, "size": True}, "size must be"),
        ({"rank": 2, "size": 2}, "rank must be a whole number from 0 to 1, not 2"),
        ({"rank": -1, "size": 2}, "rank must be"),
        ({"rank": 0.0, "size": 2}, "rank must be"),
        ({"rank": 0, "size": 2}, "give rendezvous (tcp://host:port) or all_gather"),
        ({"rank": 0, "size": 2, "rendezvous": "tcp://h:1", "all_gather": gather}, "not both"),
        (
            {"rank": 0, "size": 2, "rendezvous": 29500},
            "rendezvous must be text like tcp://host:port",
        ),
        ({"rank": 0, "size": 2, "all_gather": 5}, "all_gather must be a function"),
        ({"size": 2}, "rank was not given, and RANK in the environment is no number: ''"),
    ],
)
def test_what_connect_refuses(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], text: str) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(Misuse) as caught:
        tailcut.connect(**arguments)
    assert text in str(caught.value)


def test_bad_rendezvous() -> None:
    with pytest.raises(RendezvousError, match="is no rendezvous address"):
        tailcut.connect(rank=0, size=2, rendezvous="http://host:1")


def test_rank_and_size_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with tailcut.connect() as group:
        assert (group.rank, group.size) == (0, 1)


def test_the_configuration_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILCUT_LINGER_S", "0.5")
    with tailcut.connect(rank=0, size=1, config=tailcut.Config(port=7)) as group:
        assert (group.config.linger_s, group.config.port) == (0.5, 7)
        assert group.config.origin("linger_s") == "environment TAILCUT_LINGER_S"


def test_the_public_names() -> None:
    assert len(tailcut.__all__) <= 12
    assert all(hasattr(tailcut, name) for name in tailcut.__all__)
