"""The Python face of the engine: one group's hold on a UDP socket and on the channel it opens there.

A fixed port is shared by all groups of the process, so that firewalls need one rule for each rank. After a
fork the child owns nothing of this: it must neither send nor join threads that exist only in its parent.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence

from tailcut import _native
from tailcut.config import Config
from tailcut.errors import RendezvousError
from tailcut.schedule import Part, native_steps
from tailcut.transport.frames import endpoint_text

SECOND_NS = 1_000_000_000
_Key = tuple[str, int, int, bool]


def native_part(part: Part, itemsize: int) -> _native.Part:
    """A rank's part of a Plan in the form the engine executes."""
    return _native.Part(
        part.size,
        part.rank,
        part.input_bytes,
        part.output_bytes,
        part.stage_bytes,
        itemsize,
        native_steps(part),
    )


class Link:
    """A UDP socket, and the channel of one group on it."""

    def __init__(self, host: str, config: Config, local_rank: int = 0) -> None:
        port = config.port + local_rank if config.port else 0
        self._key: _Key = (host, port, config.receive_buffer_bytes, config.offload)
        self._options = {
            "liveness_ns": round(config.liveness_s * SECOND_NS),
            "eager_bytes": config.eager_bytes,
            "stash_bytes": config.stash_bytes,
            "retained_bytes": config.retained_bytes,
        }
        self._channel: _native.Channel | None = None
        self._endpoint: _native.Endpoint | None = _take(self._key)
        self.address: tuple[str, int] = self._endpoint.address
        _links.add(self)

    @property
    def channel(self) -> _native.Channel | None:
        """The channel, while it is open in this process."""
        return self._channel

    @property
    def features(self) -> dict[str, object]:
        """What the socket can do: gso, gro, sizes of buffers."""
        return self._endpoint.features if self._endpoint is not None else {}

    def open(self, group: int, rank: int, peers: Sequence[tuple[str, int]]) -> _native.Channel:
        """Opens the channel of a group; from now on probes of its other ranks are answered."""
        if self._endpoint is None:
            raise RendezvousError("the socket is closed", reason="socket")
        self._channel = self._endpoint.open(group, rank, peers, self._options)
        return self._channel

    def close(self, linger_ns: int) -> bool:
        """Gives up channel and socket; true if all peers had what they needed within the time."""
        channel, self._channel = self._channel, None
        endpoint, self._endpoint = self._endpoint, None
        try:
            return channel.close(linger_ns) if channel is not None else True
        finally:
            if endpoint is not None:
                _give_back(self._key, endpoint)

    def _abandon(self) -> None:
        """In a forked child: what the parent owns is kept for ever, because freeing it would act on it."""
        for held in (self._channel, self._endpoint):
            if held is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        self._channel = self._endpoint = None


# ---- sockets by address; only those with a fixed port are shared

_lock = threading.Lock()
_shared: dict[_Key, tuple[_native.Endpoint, int]] = {}  # with the number of links that use it
_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _take(key: _Key) -> _native.Endpoint:
    with _lock:
        if key in _shared:
            endpoint, users = _shared[key]
        else:
            endpoint, users = _new_endpoint(key), 0
        if key[1]:
            _shared[key] = (endpoint, users + 1)
        return endpoint


def _new_endpoint(key: _Key) -> _native.Endpoint:
    host, port, receive_buffer, offload = key
    try:
        return _native.Endpoint(host, port, receive_buffer=receive_buffer, offload=offload)
    except (OSError, RuntimeError, ValueError) as error:
        where = endpoint_text(host, port)
        raise RendezvousError(f"cannot open a UDP socket at {where}: {error}", reason="socket") from error


def _give_back(key: _Key, endpoint: _native.Endpoint) -> None:
    with _lock:
        users = _shared[key][1] - 1 if key in _shared else 0
        if users > 0:
            _shared[key] = (endpoint, users)
            return
        _shared.pop(key, None)
    endpoint.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for endpoint, _ in _shared.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(endpoint))
    _shared.clear()
    for link in list(_links):
        link._abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
