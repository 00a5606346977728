"""However a rank ends, the others either get what they need or an error that names it, and nothing leaks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import ranks
import tailcut
from ranks import Died, Place

ELEMENTS = 50_000


def total(place: Place) -> float:
    return float(sum(range(place.size)))


def leaves_at_once(place: Place) -> float:
    group = place.connect(algorithm="transpose")
    array = np.full(ELEMENTS, float(place.rank))
    group.all_reduce(array, timeout=10)
    return float(array.max())  # no close: the end of the process must do


@pytest.mark.parametrize("size", [2, 4])
def test_a_process_that_ends_right_after_its_last_operation(size: int) -> None:
    for report in ranks.reports(leaves_at_once, size):
        assert (report.value, report.error, report.exit_code) == (sum(range(size)), None, 0), report.text()


def closes_early(place: Place) -> None:
    with place.connect(algorithm="transpose") as group:
        group.barrier()
        if place.rank == 1:
            group.close()
            with pytest.raises(tailcut.GroupClosed, match="the group is closed"):
                group.barrier()
            return
        with pytest.raises(tailcut.GroupClosed) as caught:
            group.all_reduce(np.ones(ELEMENTS), timeout=10)
        assert "rank 1 has left the group" in str(caught.value)
        assert (caught.value.ranks, caught.value.reason) == ((1,), "closed")


def test_a_rank_that_closes_early_is_named() -> None:
    ranks.run(closes_early, 3)


def killed_while_others_wait(place: Place) -> tuple[str, float]:
    group = place.connect(algorithm="transpose", liveness_s=1.0)
    group.all_reduce(np.ones(10), timeout=10)
    started = time.monotonic()
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(tailcut.PeerLost) as caught:
        group.all_reduce(np.ones(ELEMENTS), timeout=20)
    assert (caught.value.ranks, caught.value.reason) == ((1,), "peer_dead")
    elapsed = time.monotonic() - started
    with pytest.raises(tailcut.PeerLost):  # the group stays broken, and says why
        group.all_reduce(np.ones(1), timeout=20)
    group.close()
    return str(caught.value), elapsed


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_within_liveness(size: int) -> None:
    for report in ranks.reports(killed_while_others_wait, size):
        if report.rank == 1:
            assert isinstance(report.error, Died) and report.exit_code == -signal.SIGKILL
            continue
        assert report.error is None, report.text()
        text, elapsed = report.value
        assert "rank 1 was lost" in text
        assert elapsed < 2.5, "liveness is 1 s; the rest is a busy test machine"


def too_late(place: Place) -> None:
    with place.connect(algorithm="transpose") as group:
        group.barrier()
        if place.rank == 2:
            time.sleep(1.0)
            return
        with pytest.raises(tailcut.CollectiveTimeout) as caught:
            group.all_reduce(np.ones(10), timeout=0.3)
        assert "rank 2 has not entered it" in str(caught.value)
        assert (caught.value.reason, caught.value.ranks) == ("timeout", (2,))


def test_a_timeout_names_who_did_not_come() -> None:
    ranks.run(too_late, 3)


def interrupted(place: Place) -> str:
    with place.connect(algorithm="transpose") as group:
        group.barrier()
        if place.rank == 1:
            time.sleep(0.6)
        elif place.rank == 0:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        try:
            group.all_reduce(np.ones(10), timeout=20)
        except KeyboardInterrupt:
            assert time.monotonic() - started < 2
            return "interrupted"
        except tailcut.GroupClosed as error:
            return error.what
    return "done"


def test_ctrl_c_ends_a_wait_and_the_others_are_told() -> None:
    first, second, third = ranks.run(interrupted, 3)
    assert first == "interrupted"
    assert second.startswith("rank 0 has given it up") and third.startswith("rank 0 has given it up")


def groups_in_a_row(place: Place) -> tuple[int, int, int]:
    threads, files = 0, 0
    for turn in range(4):
        with place.connect(algorithm="transpose") as group:
            array = np.full(100, place.rank, np.int32)
            group.all_reduce(array, timeout=10)
            assert array.tolist() == [total(place)] * 100
        if turn == 0:  # what the first one leaves for good: imports, caches
            threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    more_threads = len(os.listdir("/proc/self/task")) - threads
    more_files = len(os.listdir("/proc/self/fd")) - files
    return more_threads, more_files, group.id


def test_groups_one_after_another_leave_nothing() -> None:
    said = ranks.run(groups_in_a_row, 3)
    assert said == [(0, 0, said[0][2])] * 3


def forgotten(place: Place) -> tuple[int, int]:
    before = 0, 0
    for turn in range(3):
        group = place.connect(algorithm="transpose")
        work = group.all_reduce_async(np.full(ELEMENTS, place.rank), timeout=10)
        if place.rank:
            work.wait()
        del group, work  # rank 0's operation may still run
        gc.collect()
        found = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        before = before if turn else found
    return found[0] - before[0], found[1] - before[1]


def test_a_group_nobody_closes_is_closed_when_it_is_forgotten() -> None:
    assert ranks.run(forgotten, 3) == [(0, 0)] * 3


def two_at_once(place: Place, port: int) -> None:
    environ = {"LOCAL_RANK": str(place.rank)}
    os.environ.update(environ)
    with (
        place.connect(algorithm="transpose", port=port) as first,
        place.connect(algorithm="small", port=port) as second,
    ):
        assert first.id != second.id
        if port:
            assert first._link is not None and second._link is not None
            assert first._link.address[1] == second._link.address[1] == port + place.rank
        for turn in range(10):
            one, two = np.full(1000, turn), np.full(10, place.rank)
            works = [first.all_reduce_async(one, timeout=10), second.all_reduce_async(two, timeout=10)]
            for work in works if place.rank else reversed(works):
                work.wait()
            assert (one == place.size * turn).all() and (two == total(place)).all()
        first.close()
        second.barrier(timeout=10)  # closing one group of a socket leaves the other alone


@pytest.mark.parametrize("fixed", [False, True], ids=["any port", "one port"])
def test_two_groups_at_once(fixed: bool) -> None:
    with ranks.reserved_port() as port:  # a TCP port; the UDP ports around it are free with luck
        ranks.run(two_at_once, 2, port if fixed else 0)


def forks(place: Place) -> None:
    with place.connect(algorithm="transpose") as group:
        group.barrier()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                group.barrier(timeout=5)
            except tailcut.GroupClosed as error:
                code = 0 if "this process was forked" in str(error) else 2
            finally:
                group.close()
                del group
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        array = np.full(100, place.rank)
        group.all_reduce(array, timeout=10)
        assert array.tolist() == [total(place)] * 100


def test_a_forked_child_does_not_disturb_the_group() -> None:
    ranks.run(forks, 2)


def test_threads_as_ranks_with_an_all_gather_of_their_own() -> None:
    gather = ranks.ThreadGather(3)

    def body(rank: int) -> list[int]:
        config = tailcut.Config(socket_ifname="=lo", algorithm="transpose")
        with tailcut.connect(rank=rank, size=3, all_gather=gather.of(rank), config=config) as group:
            array = np.full(4, rank)
            group.all_reduce(array, timeout=10)
            return [int(each) for each in array]

    assert ranks.run_threads(body, 3) == [[3] * 4] * 3


@ranks.needs_ipv6
def test_ipv6() -> None:
    with ranks.reserved_port("::1") as port:

        def body(rank: int) -> tuple[str, int]:
            where = f"tcp://[::1]:{port}"
            config = tailcut.Config(algorithm="transpose")
            with tailcut.connect(rank=rank, size=2, rendezvous=where, config=config) as group:
                array = np.full(ELEMENTS, rank)
                group.all_reduce(array, timeout=10)
                assert group._link is not None
                return group._link.address[0], int(array.max())

        assert ranks.run_threads(body, 2) == [("::1", 1)] * 2


def counters(place: Place) -> tuple[int, int]:
    with place.connect(algorithm="transpose") as group:
        group.all_reduce(np.ones(ELEMENTS), timeout=10)
        found = group.counters()
        return found["data_sent"], len(group.peers())


def test_counters_and_peers() -> None:
    for sent, peers in ranks.run(counters, 2):
        assert sent >= ELEMENTS * 8 // 8972 and peers == 2


def quiet_or_not(place: Place) -> None:
    with place.connect(algorithm="small") as group:
        group.barrier()


def test_the_banner_is_printed_once_and_only_when_asked_for() -> None:
    environ = {"TAILCUT_DEBUG": "INFO", "TAILCUT_LINGER_S": "2"}
    first, second = ranks.reports(quiet_or_not, 2, environ=environ)
    assert "rank 0: group " in first.output and "interface lo" in first.output
    words = [" ".join(line.split()[-4:]) for line in first.output.splitlines()]
    assert "linger_s 2.0 environment TAILCUT_LINGER_S" in words
    assert any(each.endswith("algorithm small code") for each in words)
    assert second.output == ""
    assert [report.output for report in ranks.reports(quiet_or_not, 2)] == ["", ""]


def test_a_misspelt_variable_is_told() -> None:
    for report in ranks.reports(quiet_or_not, 2, environ={"TAILCUT_LINGERS": "2"}):
        assert report.error is None
        assert "unknown environment variable TAILCUT_LINGERS; did you mean TAILCUT_LINGER_S?" in report.output
