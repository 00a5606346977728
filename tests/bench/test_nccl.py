"""The flags and columns of nccl-tests: sizes, bandwidths by hand, and rows for what failed."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tailcut.bench import nccl
from tailcut.bench.figures import Ratio
from tailcut.bench.report import summaries
from tailcut.bench.results import Results
from tailcut.bench.sweep import Case, Contender, sweep
from tailcut.bench.team import Peer, Team

CLOCKWORK = Peer("clockwork", Path(__file__).with_name("clockwork.py"))
WATCHED = Path(__file__).parents[2] / "benchmarks/watched.py"
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


def test_figures_agree_with_a_second_clock_within_3_percent(tmp_path: Path) -> None:
    """Two ranks take at least 10 and 20 ms; on a busy machine more, and the stopwatch says how much."""
    env = {"STOPWATCH_INNER": str(CLOCKWORK.communicator), "STOPWATCH_FOLDER": str(tmp_path)}
    case = Case("20 ms", 2, 25_000, iterations=10, warmup=1)
    with Results(tmp_path / "x.jsonl", "test", {}) as results:
        with Team(replace(CLOCKWORK, communicator=WATCHED, env=env), 2) as team:
            contender = Contender("clockwork", team)
            assert sweep([contender], [case], rounds=5, results=results, console=Console(quiet=True))
        (record,) = summaries(results, "clockwork")
    stamps = [json.loads((tmp_path / f"{rank:03d}").read_text()) for rank in range(2)]
    slowest = [max(stop - start for _, start, stop in both) for both in zip(*stamps, strict=True)]
    times = [time for i, time in enumerate(slowest) if i % 11 >= 1]  # each turn's first is warm-up
    assert record["operations"] == len(times) == 50
    assert min(times) >= 20e6
    assert record["p50_ns"] == pytest.approx(statistics.median(times), rel=0.03)
    assert record["mean_ns"] == pytest.approx(statistics.mean(times), rel=0.03)
    assert record["max_ns"] == pytest.approx(max(times), rel=0.03)
    (row,) = nccl.table([record], [], []).rows
    cells = dict(zip(nccl.HEADS, row, strict=True))
    assert cells["size B"] == "100000"
    assert float(cells["time us"]) == pytest.approx(statistics.mean(times) / 1e3, rel=0.03)
    algbw = 100_000 / statistics.mean(times)
    assert float(cells["algbw GB/s"]) == float(cells["busbw GB/s"]) == pytest.approx(algbw, rel=0.03)
    assert cells["p99 us"] == "—"  # 50 operations cannot tell it from the maximum
    assert Ratio(0.9, 0.8, 1.1, 9).word() == Ratio(0.5, 0.4, 0.6, 4).word() == "inconclusive"
    assert Ratio(0.9, 0.8, 0.99, 9).word() == "faster"
    assert Ratio(1.1, 1.01, 1.2, 9).word() == "slower"


def test_a_library_with_wrong_results_has_a_row_that_says_so(tmp_path: Path) -> None:
    case = Case("c", 2, 50, iterations=3)
    with Results(tmp_path / "x.jsonl", "test", {}) as results, Team(Peer("liar", TOY), 2) as team:
        contender = Contender("liar", team, "lie")
        assert not sweep([contender], [case], rounds=1, results=results, console=Console(quiet=True))
        cases = [{**results.of("case")[0], "nbytes": case.nbytes}]
        (row,) = nccl.table(summaries(results, "liar"), results.of("failure"), cases).rows
    cells = dict(zip(nccl.HEADS, row, strict=True))
    assert (cells["library"], cells["time us"], cells["#wrong"]) == ("liar", "failed", "1")
