"""Which modules a Python file imports, by its syntax tree: those in functions and under TYPE_CHECKING too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    module: str  # absolute, with the imported name behind it: `tailcut.schedule.plan.Part`
    line: int


def module_name(path: Path, package: Path) -> str:
    """`.../tailcut/schedule/ring.py` -> `tailcut.schedule.ring`; an __init__ has its package's name."""
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, package: Path) -> list[Import]:
    return list(_imports(path, package))


def _imports(path: Path, package: Path) -> Iterator[Import]:
    here = module_name(path, package)
    if path.stem != "__init__":
        here = here.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            above = here.split(".")[: len(here.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call):
            yield from _dynamic(node)


def _dynamic(node: ast.Call) -> Iterator[Import]:
    """import_module("x") and __import__("x") count as what they are."""
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        yield Import(str(node.args[0].value), node.lineno)
