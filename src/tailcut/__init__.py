"""AllReduce that finishes on time: no hangs, the slow rank named, ordinary Ethernet usable."""

from tailcut.config import Config
from tailcut.errors import (
    CollectiveTimeout,
    ConfigError,
    GroupClosed,
    Mismatch,
    Misuse,
    PeerLost,
    RendezvousError,
    TailcutError,
)
from tailcut.group import Group, connect
from tailcut.outcome import Outcome

__all__ = [
    "CollectiveTimeout",
    "Config",
    "ConfigError",
    "Group",
    "GroupClosed",
    "Mismatch",
    "Misuse",
    "Outcome",
    "PeerLost",
    "RendezvousError",
    "TailcutError",
    "connect",
]
