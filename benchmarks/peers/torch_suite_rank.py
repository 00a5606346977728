"""One rank of PyTorch's own distributed tests; runs the test whose name it reads, and says how it ended.

python benchmarks/peers/torch_suite_rank.py BACKEND RANK SIZE       started by benchmarks/torch_suite.py

PyTorch ships the tests in its wheel, for a process for each test and rank. Here the ranks live on, because
most of the time would go into importing torch. The tests look at the environment variable BACKEND: they see
"gloo" there, so that they run as for Gloo, and are given groups of the backend under test.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import traceback
import unittest
from datetime import timedelta
from typing import Any

BACKEND, RANK, SIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(SIZE), RANK=str(RANK), MASTER_ADDR="127.0.0.1")
os.environ.setdefault("TEMP_DIR", "/tmp")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

SKIPS = {skip.exit_code: skip.message for skip in distributed_test.TEST_SKIPS.values()}
TIMEOUT = timedelta(seconds=30)
SEED = 1234
ASK_FOR_THE_NAME = ("test_get_backend", "test_Backend_enum_class")


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """All tests, with an all_reduce helper that compares values: the shipped one does not look at them."""

    def _test_all_reduce_helper(self, *args: Any, **named: Any) -> None:
        group, group_id, rank, op, master, worker, expected = args[:7]
        dtype = named.get("dtype", torch.float)
        if named.get("cuda") or len(args) > 7:
            super()._test_all_reduce_helper(*args, **named)
            return
        for source in group:
            tensor = torch.empty([source + 1] * 3, dtype=dtype).fill_(master if rank == source else worker)
            work = dist.all_reduce(tensor, op, group_id, async_op=named.get("async_op", False))
            if work is not None:
                work.wait()
            wanted = torch.empty([source + 1] * 3, dtype=dtype).fill_(expected)
            self.assertEqual(tensor, wanted)
        self._barrier()


def run(name: str, file_name: str, temp: str) -> tuple[str, str]:
    """passed, skipped or failed, and why."""
    os.environ["TEMP_DIR"] = temp
    distributed_test.BACKEND = BACKEND if name in ASK_FOR_THE_NAME else "gloo"
    distributed_test.Barrier.barrier_id = 0
    set_rng_seed(SEED)  # as a fresh process would have it: tests rely on equal random numbers on all ranks
    test = Suite(name)
    test.rank, test.file_name = RANK, file_name
    skipped = getattr(getattr(Suite, name), "__unittest_skip_why__", None)
    if skipped is not None:
        return "skipped", skipped
    try:
        where = f"file://{file_name}"
        dist.init_process_group(BACKEND, init_method=where, world_size=SIZE, rank=RANK, timeout=TIMEOUT)
        test._barrier()
        getattr(test, name)()
        test._barrier()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        if end.code in (0, None):
            return "passed", ""
        if end.code in SKIPS:
            return "skipped", SKIPS[end.code]
        return "failed", f"ended with code {end.code}"
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def names() -> list[str]:
    return sorted(name for name in dir(Suite) if name.startswith("test_"))


def main() -> None:
    orders, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print is no answer
    sys.stdout = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), write_through=True)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(json.dumps(names()), file=answers, flush=True)
    for line in orders:
        name, file_name, temp = json.loads(line)
        print(json.dumps(run(name, file_name, temp)), file=answers, flush=True)


if __name__ == "__main__":
    main()
