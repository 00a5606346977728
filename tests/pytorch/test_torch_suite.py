"""A handful of PyTorch's own distributed tests on the backend; `make torch-suite` runs all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "torch_suite.py"
TESTS = (
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_full_group",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_sum_async",
    "test_all_reduce_product",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_sum_complex",
    "test_batch_isend_irecv_gloo",
    "test_ddp_logging_data_cpu",
    "test_destroy_group",
    "test_gather_checks",
    "test_get_backend",
    "test_get_future",
    "test_grads_same_across_ranks_with_no_sync",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)


@pytest.fixture(scope="module")
def suite() -> Any:
    specification = importlib.util.spec_from_file_location("torch_suite", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.timeout(150)
def test_pytorchs_own(suite: Any) -> None:
    with suite.Team("tailcut", 2) as team:
        ended = {name: suite.examine(team, name) for name in TESTS}
    wrong = {name: found["why"] for name, found in ended.items() if found["state"] != "passed"}
    assert wrong == {}


@pytest.mark.timeout(150)
def test_a_rank_that_dies_is_a_failure(suite: Any) -> None:
    """The harness itself: a test that does not exist ends its ranks."""
    with suite.Team("gloo", 1) as alone:
        state, why = alone.run("test_that_does_not_exist")
        assert (state, "died" in why) == ("failed", True)
