"""Runs operations whose memory is taken away the moment they end: any later touch kills this process.

Started by test_memory.py in its own process: `python protected.py CASE SEED`. Prints "untouched" at the end.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import fuzz.loader  # noqa: E402, F401  (the same native module as the tests)
import numpy as np  # noqa: E402

from engine.virtual import KINDS, MS, SECOND, US, Op, Started, Virtual  # noqa: E402
from group.reference import Array, same_bits  # noqa: E402
from tailcut.types import Collective  # noqa: E402

SIZE = 4
LIBC = ctypes.CDLL(None, use_errno=True)
CASES = ("success", "timeout", "cancel", "dead", "leave", "too early")


class Pages:
    """An array on pages of its own."""

    def __init__(self, like: Array) -> None:
        self.memory = mmap.mmap(-1, max(like.nbytes, 1))
        self.array = np.frombuffer(self.memory, dtype=like.dtype, count=like.size)
        self.array[...] = like

    def take_away(self) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        length = -(-len(self.memory) // mmap.PAGESIZE) * mmap.PAGESIZE
        if LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(length), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")


class Guarded:
    """Operations over a bad network; `watch` protects the memory of whatever has ended."""

    def __init__(self, seed: int) -> None:
        options = {"liveness_ns": SECOND // 2}
        network = {"loss": 0.1, "duplicate": 0.2, "jitter_ns": 500 * US, "rate": 125e6}
        self.virtual = Virtual(SIZE, seed=seed, options=options, network=network)
        self.virtual.net.capture(True)
        self.pages: dict[int, tuple[Pages, Pages]] = {}

    def start(self, rank: int, op: Op, timeout_ns: int = 3600 * SECOND) -> Started:
        given = Pages(op.inputs(SIZE)[rank])
        whole = op.collective is Collective.ALL_REDUCE
        result = given if whole and op.family != "ring" else Pages(np.zeros_like(op.expected(SIZE)[rank]))
        one = self.virtual.start_with(rank, op, given.array, result.array, timeout_ns=timeout_ns)
        self.pages[id(one)] = (given, result)
        return one

    def watch(self, ended: list[Started]) -> None:
        for one in ended:
            if one.code == "none":
                assert same_bits(one.output, one.op.expected(SIZE)[one.rank]), f"wrong value of {one.op}"
            for pages in self.pages[id(one)]:
                pages.take_away()

    def run(self, duration_ns: int, step_ns: int = 50 * US) -> None:
        end = self.virtual.now_ns + duration_ns
        while self.virtual.now_ns < end and self.virtual.pending():
            self.watch(self.virtual.run(min(step_ns, end - self.virtual.now_ns)))

    def replay(self, draw: random.Random) -> None:
        """All that was ever sent comes again, in any order, and a little is flipped."""
        captured = self.virtual.net.take_captured()
        draw.shuffle(captured)
        for _, source, target, datagram in captured:
            mangled = bytearray(datagram)
            if draw.random() < 0.2:
                mangled[draw.randrange(len(mangled))] ^= 1 << draw.randrange(8)
            self.virtual.net.inject(target, source, bytes(mangled))
        self.watch(self.virtual.run(2 * SECOND))


def play(case: str, seed: int) -> None:
    draw = random.Random(seed)
    guarded = Guarded(seed)
    virtual = guarded.virtual
    timeout_ns = 30 * MS if case == "timeout" else 3600 * SECOND
    ops = [Op(count, *kind, salt=count) for kind in KINDS for count in (11, 60_000)]
    draw.shuffle(ops)
    for rank in virtual.ranks:
        for op in ops:
            guarded.start(rank, op, timeout_ns)
    if case == "too early":  # shows that a touch does kill
        for pages in guarded.pages[id(virtual.started[0][0])]:
            pages.take_away()
    guarded.run(10 * MS)
    if case == "cancel":
        for one in virtual.pending([1]):
            virtual.net.cancel(1, one.ticket)
    elif case == "dead":
        virtual.net.kill(2)
    elif case == "leave":
        virtual.net.leave(3)
    guarded.watch(virtual.poll())
    guarded.run(20 * SECOND, 500 * US)
    alive = [rank for rank in virtual.ranks if not (case == "dead" and rank == 2)]
    assert not virtual.pending(alive), "hangs"
    if case == "success":
        assert all(one.code == "none" for rank in alive for one in virtual.started[rank])
    else:
        assert any(one.code != "none" for rank in alive for one in virtual.started[rank]), "nothing failed"
    guarded.replay(draw)
    virtual.settle(5 * SECOND, alive)
    print("untouched", flush=True)


if __name__ == "__main__":
    play(sys.argv[1], int(sys.argv[2]))
