"""What a library must offer to be measured: the few calls that the ranks make."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of a library without a launcher of its own find each other."""

    rank: int  # -1: the launcher knows
    size: int
    host: str  # rank 0's address
    port: int  # a free TCP port there
    interface: str  # the network interface to use: `lo`, or `eth0` on a host of the lab


class Communicator(Protocol):
    """A library under measurement, as one rank sees it."""

    rank: int
    size: int
    versions: dict[str, str]  # what the results must name to be reproducible

    def barrier(self) -> None: ...

    def all_reduce(self, array: Array, op: str, variant: str) -> str:
        """Reduces the array over all ranks, in place; returns what the library says it did, "" if nothing.

        op: sum, avg, min, max or prod.
        """
        ...

    def start(self, array: Array, tag: int) -> Callable[[], None]:
        """Starts a sum in the background; calling what it returns waits for the end."""
        ...

    def counters(self) -> dict[str, int]:
        """What the library counts about itself since it began, if anything."""
        ...

    def close(self) -> None: ...


Open = Callable[[Meeting], Communicator]


def load(path: Path) -> Open:
    """The function `connect` of the Python file at `path`.

    By path: files that bring other libraries in (torch, MPI) stand outside this package.
    """
    spec = importlib.util.spec_from_file_location(f"tailcut_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return cast(Open, module.connect)
