"""Round trips over UDP for the lab's tests: `answer` until ended; `ask` prints the seconds of each."""

from __future__ import annotations

import json
import socket
import sys
import time

PORT = 5002
TIMEOUT_S = 0.5


def answer(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind((address, PORT))
        print("ready", flush=True)
        while True:
            packet, source = end.recvfrom(65_536)
            end.sendto(packet, source)


def ask(address: str, count: int, size: int) -> list[float | None]:
    """None where no answer came."""
    times: list[float | None] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(TIMEOUT_S)
        end.connect((address, PORT))
        for number in range(count):
            start = time.monotonic()
            try:
                end.send(number.to_bytes(4, "big") + bytes(size - 4))
                while int.from_bytes(end.recv(65_536)[:4], "big") != number:
                    pass
                times.append(time.monotonic() - start)
            except OSError:  # a time-out, or the word that a port or a way is closed
                times.append(None)
            time.sleep(0.002)
    return times


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        answer(sys.argv[2])
    else:
        print(json.dumps(ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
