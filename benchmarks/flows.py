"""TCP flows that fill a link, for benchmarks/fairness.py: one process sends, one receives and counts.

    flows.py receive ADDRESS PORT FLOWS         prints `ready`; after the window, bytes per flow and bin
    flows.py send ADDRESS PORT FLOWS            prints `ready CONTROL` when all flows are connected

Both then read one line, `BEGIN END` in nanoseconds of the monotonic clock, which all namespaces share. What
the receiver counts is what arrives between the two; the senders go on a little longer.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import threading
import time

BLOCK_BYTES = 65_536
BIN_NS = 100_000_000
OVERRUN_NS = 500_000_000  # senders outlast the window, so that its end is no different from its middle
ACCEPT_S = 20.0


def window() -> tuple[int, int]:
    begin, end = (int(word) for word in sys.stdin.readline().split())
    return begin, end


def send(address: str, port: int, flows: int) -> None:
    connections = []
    for _ in range(flows):
        connection = socket.socket()
        connection.connect((address, port))
        connections.append(connection)
    control = connections[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    print("ready", control.rstrip(b"\0").decode(), flush=True)
    until = window()[1] + OVERRUN_NS

    def fill(connection: socket.socket) -> None:
        block = bytes(BLOCK_BYTES)
        try:
            while time.monotonic_ns() < until:
                connection.sendall(block)
        except OSError:
            pass  # the receiver has seen enough
        connection.close()

    threads = [threading.Thread(target=fill, args=(connection,), daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive(address: str, port: int, flows: int) -> None:
    selector = selectors.DefaultSelector()
    with socket.create_server((address, port), backlog=flows) as server:
        server.settimeout(ACCEPT_S)
        print("ready", flush=True)
        for flow in range(flows):
            connection, _ = server.accept()
            selector.register(connection, selectors.EVENT_READ, flow)
    begin, end = window()
    bins = [[0] * ((end - begin + BIN_NS - 1) // BIN_NS) for _ in range(flows)]
    block = bytearray(4 * BLOCK_BYTES)
    while (now := time.monotonic_ns()) < end and selector.get_map():
        for key, _ in selector.select(0.05):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            got = connection.recv_into(block)
            if not got:
                selector.unregister(connection)
            elif now >= begin:
                bins[key.data][(now - begin) // BIN_NS] += got
    print(json.dumps(bins), flush=True)


if __name__ == "__main__":
    role, where, number, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if role == "send":
        send(where, number, count)
    else:
        receive(where, number, count)
