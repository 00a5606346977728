"""Traffic for the lab's tests: `send` or `receive`, over tcp (seconds) or udp and gso (packets)."""

from __future__ import annotations

import json
import socket
import sys
import time

PORT = 5001
UDP_SEGMENT = 103  # linux/udp.h
PAYLOAD_BYTES = 1200
QUIET_S = 0.5  # a datagram receiver that hears nothing for so long has heard all
PACKETS_PER_GSO = 8


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def send_tcp(address: str, seconds: float) -> None:
    with socket.create_connection((address, PORT)) as connection:
        end, block = time.monotonic() + seconds, bytes(65_536)
        while time.monotonic() < end:
            connection.sendall(block)


def receive_tcp(address: str) -> dict[str, float | str]:
    with socket.create_server((address, PORT), family=family_of(address)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        block, total, start, last = bytearray(1 << 20), 0, 0.0, 0.0
        warm = time.monotonic() + 0.3  # slow start is not the link's rate
        while got := connection.recv_into(block):
            last = time.monotonic()
            if start:
                total += got
            elif last > warm:
                start = last
    return {"bytes": total, "seconds": last - start, "control": name.rstrip(b"\0").decode()}


def send_datagrams(address: str, packets: int, per_send: int) -> None:
    """Paced to about 100 Mbit/s: no queue on the way may lose any."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as sender:
        if per_send > 1:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD_BYTES)
        sender.connect((address, PORT))
        start = time.monotonic()
        for first in range(0, packets, per_send):
            numbers = range(first, min(first + per_send, packets))
            sender.send(b"".join(number.to_bytes(4, "big") + bytes(PAYLOAD_BYTES - 4) for number in numbers))
            ahead = start + first * PAYLOAD_BYTES * 8 / 100e6 - time.monotonic()
            if ahead > 0.001:
                time.sleep(ahead)


def receive_datagrams(address: str) -> dict[str, float]:
    numbers = []
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.bind((address, PORT))
        print("ready", flush=True)
        while True:
            try:
                numbers.append(int.from_bytes(receiver.recv(65_536)[:4], "big"))
            except TimeoutError:
                break
            receiver.settimeout(QUIET_S)
    received = set(numbers)
    gaps = sum(1 for number in received if number + 1 not in received and number + 1 < max(received))
    return {"packets": len(numbers), "gaps": gaps}


def main() -> None:
    role, kind, address = sys.argv[1:4]
    if role == "receive":
        print(json.dumps(receive_tcp(address) if kind == "tcp" else receive_datagrams(address)))
    elif kind == "tcp":
        send_tcp(address, float(sys.argv[4]))
    else:
        send_datagrams(address, int(float(sys.argv[4])), PACKETS_PER_GSO if kind == "gso" else 1)


if __name__ == "__main__":
    main()
