"""AllReduce that finishes on time: no hangs, the slow rank named, ordinary Ethernet usable.

The names below are imported when they are first used: `import torch` imports this package in every process
(see pytorch/autoload.py), and must become neither slower by it nor fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
]  # and attach, which a star import leaves out because it needs torch

_HOMES = {
    "Config": "tailcut.config",
    "Group": "tailcut.group",
    "Outcome": "tailcut.outcome",
    "attach": "tailcut.pytorch.hook",
    "connect": "tailcut.group",
}
_MODULES = frozenset({"config", "errors", "group", "outcome", "schedule", "transport", "types"})


def __getattr__(name: str) -> Any:
    if name in __all__ or name in _HOMES:
        value = getattr(import_module(_HOMES.get(name, "tailcut.errors")), name)
    elif name in _MODULES:
        value = import_module(f"tailcut.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})
