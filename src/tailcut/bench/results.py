"""Results as lines of JSON: first the run (machine, versions, commit, command), then everything measured.

A run writes beside its file and takes its place only at the end: an interrupted run loses no earlier one.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

Record = dict[str, Any]
PROGRAM = ("tailcut", "cli.py")  # what argv[0] ends with when the installed command runs


class Results:
    """The records of one run, in memory and, line by line, in a file."""

    def __init__(self, path: Path, benchmark: str, settings: Record) -> None:
        self.path = path
        self.records: list[Record] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = path.with_name(path.name + ".partial")
        self._file: TextIO = self._partial.open("w", encoding="utf-8")
        self.add("run", benchmark=benchmark, **circumstances(), settings=settings)

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)

    def add(self, kind: str, **fields: Any) -> Record:
        record = {"kind": kind, **fields}
        self.records.append(record)
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        return record

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]


def read(path: Path) -> list[Record]:
    return [dict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def circumstances() -> Record:
    """What a reader needs to judge the figures or to get them again."""
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(_command(sys.argv)),
        "commit": _git("rev-parse", "HEAD"),
        # Uncommitted changes of what is measured; those of documents do not matter.
        "changed": _git("status", "--porcelain", "--", ":/src", ":/native", ":/benchmarks/*.py").splitlines(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_average": os.getloadavg()[0],
            "tcp_congestion": _text("/proc/sys/net/ipv4/tcp_congestion_control"),
            "rmem_max": int(_text("/proc/sys/net/core/rmem_max") or 0),
        },
        "versions": {"python": platform.python_version(), "tailcut": _version()},
    }


def _command(argv: list[str]) -> list[str]:
    """The command line, short enough to read and to repeat."""
    first = Path(argv[0])
    if first.name in PROGRAM:
        return ["tailcut", *argv[1:]]
    if first.is_absolute() and first.is_relative_to(Path.cwd()):
        first = first.relative_to(Path.cwd())
    return ["python", str(first), *argv[1:]]


def _version() -> str:
    try:
        return importlib.metadata.version("tailcut")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _git(*words: str) -> str:
    """What git says of the clone this file belongs to; empty for an installed package or without git."""
    here = Path(__file__)
    for arguments in (["ls-files", "--error-unmatch", here.name], list(words)):
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=here.parent)
        except FileNotFoundError:
            return ""
        if done.returncode != 0:
            return ""
    return done.stdout.strip()


def _cpu() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
