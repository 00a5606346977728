"""Where the project's own sources are: what the laws are held against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tailcut"
NATIVE = ROOT / "native"
OWN_FOLDERS = ("src", "native", "tests", "examples", "benchmarks", "fuzz", "scripts", "docs")
CPP_SUFFIXES = (".cpp", ".hpp", ".h", ".cc")


def python_files(root: Path = ROOT) -> list[Path]:
    return sorted(_walk(root, (".py", ".pyi")))


def cpp_files(root: Path = ROOT) -> list[Path]:
    return sorted(_walk(root, CPP_SUFFIXES))


def _walk(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for name in OWN_FOLDERS:
        for path in (root / name).rglob("*"):
            if path.suffix in suffixes and path.is_file():
                yield path
