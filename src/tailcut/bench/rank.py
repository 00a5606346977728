"""One rank of a library under measurement: a process that lives through all rounds and obeys the harness.

    python -m tailcut.bench.rank --control PATH --communicator FILE --rank 0 --size 4 --host 127.0.0.1 ...

Between orders it waits in a read of the control socket and takes no processor time from the others.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.bench import control
from tailcut.bench.communicator import Array, Communicator, Meeting, load
from tailcut.bench.oracle import Oracle, Wrong, numpy_dtype


def measure(communicator: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Times `iterations` operations, each from the communicator's barrier to its end on this rank."""
    elements, warmup = order["elements"], order["warmup"]
    variant, dtype, op = order["variant"], order["dtype"], order["op"]
    oracle = Oracle(communicator.rank, communicator.size, elements, order["seed"], dtype, op)
    array = np.empty(elements, dtype=numpy_dtype(dtype))
    starts, ends, said = [], [], ""
    lags = order.get("lags_ns")  # per operation and rank: the lab's stragglers
    wrong: Wrong | None = None
    before = communicator.counters()
    gc.collect()
    gc.disable()
    try:
        for operation in range(warmup + order["iterations"]):
            oracle.fill(array, operation)
            communicator.barrier()
            if lags:
                _be_late(lags[operation][communicator.rank])
            start = time.monotonic_ns()
            said = communicator.all_reduce(array, op, variant)
            end = time.monotonic_ns()
            # A wrong result is told at the end: the other ranks count on this one until then.
            wrong = wrong or oracle.wrong(array, operation)
            if operation >= warmup:
                starts.append(start)
                ends.append(end)
    finally:
        gc.enable()
    counted = _since(before, communicator.counters())
    return {"starts_ns": starts, "ends_ns": ends, "said": said, "counters": counted, **_told(wrong)}


def stream(communicator: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Keeps `in_flight` operations going for `seconds`; returns when each ended on this rank.

    Only rank 0 looks at the clock. The first element carries its word to stop: every rank learns it from
    the same operation, so all start equally many.
    """
    elements, depth = order["elements"], order["in_flight"]
    oracle = Oracle(communicator.rank, communicator.size, elements, order["seed"])
    flying: deque[tuple[int, Array, Callable[[], None]]] = deque()
    spare = [np.empty(elements, dtype=np.float32) for _ in range(depth)]
    ends: list[int] = []
    before = communicator.counters()
    communicator.barrier()
    begin = time.monotonic_ns()
    until = begin + int(order["seconds"] * 1e9)
    operation, stop = 0, False
    wrong: Wrong | None = None
    while flying or not stop:
        while not stop and spare:
            array = spare.pop()
            oracle.fill(array, operation)
            over = communicator.rank == 0 and time.monotonic_ns() >= until
            array[0] = 1 if over else 0
            flying.append((operation, array, communicator.start(array, operation % depth)))
            operation += 1
        number, array, wait = flying.popleft()
        wait()
        ends.append(time.monotonic_ns())
        stop = stop or bool(array[0] > 0)
        array[0] = oracle.first(number)
        wrong = wrong or oracle.wrong(array, number)
        spare.append(array)
    counted = _since(before, communicator.counters())
    return {"begin_ns": begin, "ends_ns": ends, "counters": counted, **_told(wrong)}


def _be_late(lag_ns: int) -> None:
    if lag_ns:
        time.sleep(lag_ns * 1e-9)


def _told(wrong: Wrong | None) -> dict[str, Any]:
    return {"wrong": wrong.text if wrong else "", "wrong_elements": wrong.elements if wrong else 0}


def _since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


ORDERS = {"measure": measure, "stream": stream}


def obey(connection: socket.socket, communicator: Communicator) -> None:
    """Does what it is told until the harness closes the connection."""
    while (order := control.receive(connection)) is not None:
        try:
            answer = ORDERS[order["do"]](communicator, order)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        control.send(connection, answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", required=True, help="path of the harness's Unix socket")
    parser.add_argument("--communicator", type=Path, required=True, help="Python file with `connect`")
    parser.add_argument("--rank", type=int, default=-1, help="-1: the library's launcher knows")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--port", type=int, default=0, help="a free TCP port of rank 0")
    parser.add_argument("--interface", default="lo")
    options = parser.parse_args()
    connect = load(options.communicator)
    meeting = Meeting(options.rank, options.size, options.host, options.port, options.interface)
    communicator = connect(meeting)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(options.control)
        versions = {"python": platform.python_version(), "numpy": np.__version__, **communicator.versions}
        control.send(connection, {"rank": communicator.rank, "pid": os.getpid(), "versions": versions})
        obey(connection, communicator)
    communicator.close()


if __name__ == "__main__":
    main()
