"""A share of the processor for the processes of a host, by cgroup where that is allowed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tailcut.lab.system import LabError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 20_000  # short: a host without its share is late by milliseconds, not by a tenth of a second


def problem() -> str:
    """Why processes cannot be limited here; empty when they can."""
    folder = _folder()
    if folder is None:
        return f"no cgroup hierarchy with the cpu controller below {ROOT}"
    if not os.access(folder, os.W_OK):
        return f"{folder} is not writable: cgroups need root, or a delegated hierarchy"
    return ""


class CpuLimit:
    """A cgroup named after its lab, so that `clean` finds it when the lab was killed."""

    def __init__(self, name: str, percent: float) -> None:
        """percent: of one core, as 50 or 150."""
        if reason := problem():
            raise LabError(f"no CPU limit for {name}: {reason}")
        folder = _folder()
        assert folder is not None
        self._path = folder / name
        quota_us = max(1_000, round(PERIOD_US * percent / 100))
        try:
            self._path.mkdir()
            if (self._path / "cpu.max").exists():
                (self._path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (self._path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self._path / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            self.close()
            raise LabError(f"no CPU limit for {name}: {error}") from error

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Its processes must have ended."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def names() -> list[str]:
    """All cgroups of labs, dead or alive."""
    folder = _folder()
    return [] if folder is None else [path.name for path in folder.glob("tailcut-*") if path.is_dir()]


def remove(name: str) -> None:
    folder = _folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / name).rmdir()


def _folder() -> Path | None:
    """Where groups with a CPU limit can be made: version 2 or version 1 of the interface."""
    for folder in (ROOT, ROOT / "unified"):
        with contextlib.suppress(OSError):
            if "cpu" in (folder / "cgroup.subtree_control").read_text().split():
                return folder
    for name in ("cpu", "cpu,cpuacct"):
        if (ROOT / name / "cpu.cfs_quota_us").exists() or (ROOT / name / "cgroup.procs").exists():
            return ROOT / name
    return None
