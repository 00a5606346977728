"""Gives packets the way they would have between far hosts: the switch sends them through this process.

    python -m tailcut.lab.relay NAME_IN NAME_OUT DELAY_MS JITTER_MS REORDER_PERCENT REORDER_MS SEED

It makes two TAP devices in the namespace it is started in, prints `ready`, and passes every packet that is
sent to the first on to the second when its time has come. Single packets, unchanged; checksums that the
sender left to the device stay open, as on any cable of the lab (the header in front of each packet says so).
Kernels with netem need no relay (wan.py).
"""

from __future__ import annotations

import fcntl
import heapq
import math
import os
import random
import select
import struct
import sys
import time
from collections.abc import Iterator

from tailcut.lab.timers import precise_timers, prompt_process

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
TUN_F_CSUM = 0x1  # checksums may be left open; no segmentation offload: single packets only
VNET_BYTES = 10  # struct virtio_net_hdr in front of each packet
PATH = slice(VNET_BYTES, VNET_BYTES + 12)  # both MAC addresses: who to whom
PACKET_BYTES_MAX = 65_600 + VNET_BYTES
BATCH = 64  # packets read before the next look at those that are due
QUEUE_PACKETS_MAX = 200_000  # 50 ms at 40 Gbit/s; beyond it the relay drops, as any queue does
JITTER_MEMORY_NS = 20_000_000  # after so long a path's delay has forgotten what it was
REST_NS = 70_000  # what one way takes beside the relay: the sender's and the receiver's wake-up, two cables
EARLY_NS_MAX = 400_000
EARLY_GAIN = 0.02  # how fast the relay learns how late it wakes up on this machine


def tap(name: str) -> int:
    """Makes a TAP device that lives as long as the file."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SystemExit(f"no delay without netem or /dev/net/tun: {error}") from error
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), flags))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM)
    return device


class Course:
    """When each packet may arrive: pure, time and randomness are passed in.

    The delay of a path wanders about its mean (Ornstein and Uhlenbeck): packets close together have about
    the same. Independent jitter would hold everyone back behind the unluckiest, and let them go in clumps.
    """

    def __init__(
        self, delay_ns: int, jitter_ns: int, reorder_share: float, reorder_ns: int, rng: random.Random
    ) -> None:
        self._delay_ns, self._jitter_ns = delay_ns, jitter_ns
        self._reorder_share, self._reorder_ns = reorder_share, reorder_ns
        self._rng = rng
        self._paths: dict[bytes, tuple[int, float, int]] = {}  # last packet: when, its jitter, when due

    def due_ns(self, path: bytes, now_ns: int) -> int:
        due = now_ns + self._delay_ns
        if self._jitter_ns:
            last_ns, jitter, last_due = self._paths.get(path, (0, 0.0, 0))
            memory = math.exp((last_ns - now_ns) / JITTER_MEMORY_NS)
            jitter = memory * jitter + math.sqrt(1 - memory**2) * self._rng.gauss(0, self._jitter_ns)
            due = max(now_ns, due + round(jitter), last_due)  # none overtakes another by jitter alone
            self._paths[path] = (now_ns, jitter, due)
        if self._reorder_share and self._rng.random() < self._reorder_share:
            due += self._reorder_ns
        return due


def pass_on(source: int, target: int, course: Course) -> None:
    """Runs until the process is ended."""
    queue: list[tuple[int, int, bytes]] = []
    serial, early_ns = 0, REST_NS
    while True:
        while queue and queue[0][0] - early_ns <= (now := time.monotonic_ns()):
            due_ns, _, packet = heapq.heappop(queue)
            _write(target, packet)
            error_ns = now + REST_NS - due_ns  # on the way by so much later than wanted
            early_ns = min(EARLY_NS_MAX, max(0, early_ns + round(EARLY_GAIN * error_ns)))
        wait = (queue[0][0] - early_ns - time.monotonic_ns()) * 1e-9 if queue else 60.0
        if not select.select([source], [], [], max(0.0, wait))[0]:
            continue
        now = time.monotonic_ns()
        for packet in _read(source):
            if len(queue) < QUEUE_PACKETS_MAX:
                heapq.heappush(queue, (course.due_ns(packet[PATH], now), serial, packet))
                serial += 1


def _read(source: int) -> Iterator[bytes]:
    for _ in range(BATCH):
        try:
            yield os.read(source, PACKET_BYTES_MAX)
        except BlockingIOError:
            return


def _write(target: int, packet: bytes) -> None:
    try:
        os.write(target, packet)
    except BlockingIOError:
        pass  # the device's own queue is full: the packet is lost, as at any full queue
    except OSError:
        pass  # the device is being taken away, or not up yet


def main(words: list[str]) -> None:
    delay, jitter, reorder_percent, reorder = (float(word) for word in words[2:6])
    course = Course(
        round(delay * 1e6),
        round(jitter * 1e6),
        reorder_percent / 100,
        round(reorder * 1e6),
        random.Random(int(words[6])),
    )
    source, target = tap(words[0]), tap(words[1])
    precise_timers()
    prompt_process()  # it stands for a cable, which does not wait for a core
    print("ready", flush=True)
    pass_on(source, target, course)


if __name__ == "__main__":
    main(sys.argv[1:])
