"""AllReduce that finishes on time: no hangs, the slow rank named, ordinary Ethernet usable."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    "attach",
    "connect",
]

_FOR_TORCH = {"attach": "tailcut.pytorch.hook"}  # imported on first use: without it nothing here needs torch


def __getattr__(name: str) -> Any:
    if name in _FOR_TORCH:
        return getattr(import_module(_FOR_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
