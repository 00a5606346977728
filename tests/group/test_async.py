"""Many operations at once: any order of tags on any rank, from any thread; arrays live as long as needed."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref

import numpy as np
import pytest

import ranks
import tailcut
from ranks import Place

MANY = 96


def any_order(place: Place, count: int) -> None:
    with place.connect(algorithm="transpose") as group:
        tags = list(range(MANY))
        random.Random(place.rank).shuffle(tags)
        arrays = {tag: np.full(count, float(place.rank + tag)) for tag in tags}
        works = {tag: group.all_reduce_async(arrays[tag], tag=tag, timeout=20) for tag in tags}
        random.Random(-place.rank).shuffle(tags)
        for tag in tags:
            outcome = works[tag].wait(20)
            assert (outcome.tag, outcome.sequence) == (tag, 0)
            assert works[tag].done()
            want = sum(range(place.size)) + place.size * tag
            assert (arrays[tag] == want).all(), (tag, want, arrays[tag][:3])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("count", [1, 5000])
def test_every_rank_starts_them_in_another_order(size: int, count: int) -> None:
    ranks.run(any_order, size, count)


def one_tag(place: Place) -> None:
    with place.connect(algorithm="small") as group:
        arrays = [np.full(3, index * 10 + place.rank) for index in range(MANY)]
        works = [group.all_reduce_async(array, tag=5, timeout=20) for array in arrays]
        for index in reversed(range(MANY)):
            assert works[index].wait().sequence == index
            assert arrays[index].tolist() == [index * 10 * place.size + sum(range(place.size))] * 3


def test_many_under_one_tag_keep_their_order() -> None:
    ranks.run(one_tag, 3)


def dropped(place: Place) -> None:
    with place.connect(algorithm="transpose") as group:
        array = np.ones(10_000)
        gone = weakref.ref(array)
        group.all_reduce_async(array, timeout=20)
        del array
        gc.collect()
        if place.rank == 0:
            time.sleep(0.3)  # the others cannot be done before
        assert group.all_reduce(np.ones(2), timeout=20).sequence == 1
        for _ in range(3):
            group.barrier(timeout=20)
        gc.collect()
        assert gone() is None


def test_an_operation_nobody_waits_for_goes_on_and_lets_go_of_its_array() -> None:
    ranks.run(dropped, 3)


def several_threads(place: Place) -> None:
    failures: list[BaseException] = []
    with place.connect(algorithm="transpose") as group:

        def body(tag: int) -> None:
            try:
                for turn in range(50):
                    array = np.full(100, tag + turn + place.rank, np.int64)
                    outcome = group.all_reduce(array, tag=tag, timeout=20)
                    assert outcome.sequence == turn
                    assert (array == place.size * (tag + turn) + sum(range(place.size))).all()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=body, args=(tag,)) for tag in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
    assert not failures, failures


def test_several_threads_share_a_group() -> None:
    ranks.run(several_threads, 2)


def late(place: Place) -> tuple[str, float]:
    with place.connect(algorithm="transpose") as group:
        group.barrier()
        if place.rank == 1:
            time.sleep(0.5)
        array = np.ones(100)
        work = group.all_reduce_async(array, timeout=20)
        reason = ""
        if place.rank == 0:
            assert not work.done()
            with pytest.raises(tailcut.CollectiveTimeout) as caught:
                work.wait(0.05)
            reason = caught.value.reason
            assert isinstance(caught.value, TimeoutError)
        outcome = work.wait()
        assert array.tolist() == [place.size] * 100
        group.barrier()
        return reason, (outcome.lags_ns[1] or 0) / 1e9


def test_a_wait_may_expire_and_be_repeated_and_the_lag_is_told() -> None:
    (reason, lag), _, _ = ranks.run(late, 3)
    assert reason == "wait_expired"
    assert 0.4 < lag < 2


def barrier(place: Place) -> float:
    with place.connect(algorithm="small") as group:
        group.barrier()
        if place.rank == 2:
            time.sleep(0.4)
        started = time.monotonic()
        assert group.barrier().collective == "barrier"
        return time.monotonic() - started


def test_a_barrier_waits_for_the_last() -> None:
    first, second, _ = ranks.run(barrier, 3)
    assert min(first, second) > 0.3


def tuned(place: Place) -> tuple[object, str, str]:
    with place.connect() as group:
        small = group.all_reduce(np.ones(1), timeout=10)
        large = group.all_reduce(np.ones(1_000_000, np.float32), timeout=20)
        return group.crossover, small.family, large.why


def test_crossovers_are_the_same_on_all_ranks() -> None:
    said = ranks.run(tuned, 3)
    assert said == [said[0]] * 3
    assert "measured" in said[0][2]
