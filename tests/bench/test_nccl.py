"""The flags and columns of nccl-tests: sizes, bandwidths by hand, and rows for what failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tailcut.bench import nccl
from tailcut.bench.report import as_ratio, summaries
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Peer, Team

CLOCKWORK = Peer("clockwork", Path(__file__).with_name("clockwork.py"))
TOY = Path(__file__).with_name("toy.py")


def test_sizes_as_people_write_them() -> None:
    for text, nbytes in {"65536": 65536, "64K": 65536, "1M": 1 << 20, "2g": 2 << 30, "1.5 KiB": 1536}.items():
        assert nccl.parse_size(text) == nbytes
    for text in ("", "K", "-1", "3Q", "1e3"):
        with pytest.raises(ValueError, match="is no size"):
            nccl.parse_size(text)


def test_steps_are_whole_elements_and_end_at_the_end() -> None:
    assert nccl.sizes(64 << 10, 1 << 20, 4, 4) == [65536, 262144, 1048576]
    assert nccl.sizes(10, 40, 1.5, 4) == [8, 12, 20, 32]
    assert nccl.sizes(1, 2, 2, 8) == [8]
    with pytest.raises(ValueError, match="above 1"):
        nccl.sizes(1, 2, 1, 4)
    with pytest.raises(ValueError, match="above their end"):
        nccl.sizes(3, 2, 2, 4)


def test_bandwidths() -> None:
    algbw, busbw = nccl.bandwidths(8_000_000, 4_000_000, 4)  # 8 MB in 4 ms
    assert algbw == pytest.approx(2.0)
    assert busbw == pytest.approx(3.0)


def test_figures_agree_with_known_durations_within_3_percent(tmp_path: Path) -> None:
    """Two ranks take 10 and 20 ms by another clock: every operation lasts 20, and so do the quantiles."""
    case = Case("20 ms", 2, 25_000, iterations=10, warmup=1)
    with Results(tmp_path / "x.jsonl", "test", {}) as results, Team(CLOCKWORK, 2) as team:
        assert sweep(
            [Contender("clockwork", team)], [case], rounds=5, results=results, console=Console(quiet=True)
        )
        (record,) = summaries(results, "clockwork")
    assert record["operations"] == 50
    for name in ("p50_ns", "mean_ns"):
        assert record[name] == pytest.approx(20e6, rel=0.03)
    (row,) = nccl.table([record], [], []).rows
    cells = dict(zip(nccl.HEADS, row, strict=True))
    assert cells["size B"] == "100000"
    assert float(cells["time us"]) == pytest.approx(20_000, rel=0.03)
    assert float(cells["algbw GB/s"]) == float(cells["busbw GB/s"]) == pytest.approx(0.005, rel=0.03)
    assert cells["p99 us"] == "—"  # 50 operations cannot tell it from the maximum
    own = as_ratio(record)
    assert own is not None
    assert own.word() == "inconclusive"


def test_a_library_with_wrong_results_has_a_row_that_says_so(tmp_path: Path) -> None:
    case = Case("c", 2, 50, iterations=3)
    with Results(tmp_path / "x.jsonl", "test", {}) as results, Team(Peer("liar", TOY), 2) as team:
        contender = Contender("liar", team, "lie")
        assert not sweep([contender], [case], rounds=1, results=results, console=Console(quiet=True))
        cases = [{**results.of("case")[0], "nbytes": case.nbytes}]
        (row,) = nccl.table(summaries(results, "liar"), results.of("failure"), cases).rows
    cells = dict(zip(nccl.HEADS, row, strict=True))
    assert (cells["library"], cells["time us"], cells["#wrong"]) == ("liar", "failed", "1")
