"""Law 4: imports point one way, along the path of a gradient; only pytorch/ and measured peers import torch.

The table below is the path. A module or folder directly under tailcut/ is a unit; a unit may import itself
and what stands in its row. A new unit needs a row, so that its place on the path is decided and not an
accident.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from laws.imports import imports, module_name
from laws.tree import PACKAGE

WORDS = frozenset({"types", "errors"})  # what everyone may speak
VALUES = WORDS | {"outcome", "config"}
PURE = frozenset({"schedule", "policy", "transform"})
CORE = VALUES | PURE | {"_native", "transport", "observe", "group"}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "_native": frozenset(),
    "errors": frozenset({"types"}),
    "outcome": WORDS,
    "config": WORDS,
    "schedule": WORDS,
    "policy": WORDS,
    "transform": WORDS,
    "observe": VALUES,
    "transport": VALUES | {"schedule", "_native"},  # runs Plans: it translates them for the engine
    "group": CORE,
    "__init__": CORE,
    "pytorch": CORE | {"__init__"},
    "sim": VALUES | PURE | {"_native"},  # the same Plans and policies, another network
    "lab": VALUES,
    "bench": CORE | {"__init__", "lab"},
    "cli": CORE | {"__init__", "lab", "bench", "sim"},
}
MAY_IMPORT_TORCH = "pytorch"
# The libraries measured beside us: files that ranks of the benchmark load by path, so that the package
# works without them. They may import torch; nothing may import them.
PEERS = "bench.peers"


def wrong_imports(package: Path) -> list[str]:
    return [problem for path in sorted(package.rglob("*.py*")) for problem in _wrong_in(path, package)]


def _wrong_in(path: Path, package: Path) -> list[str]:
    if path.suffix not in (".py", ".pyi"):
        return []
    unit = _unit(module_name(path, package))
    if unit not in MAY_IMPORT:
        return [f"{path}: {unit} has no place on the path: give it a row in MAY_IMPORT"]
    problems = []
    for found in imports(path, package):
        top = found.module.split(".")[0]
        if found.module.startswith(f"{package.name}.{PEERS}"):
            problems.append(f"{path}:{found.line}: {unit} imports a peer; they are loaded by path, in ranks")
        if top == "torch" and unit != MAY_IMPORT_TORCH and not _is_peer(path, package):
            problems.append(f"{path}:{found.line}: {unit} imports torch; only {MAY_IMPORT_TORCH} may")
        if top == package.name:
            target = _target(found.module, package)
            if target != unit and target not in MAY_IMPORT[unit]:
                problems.append(f"{path}:{found.line}: {unit} imports {target}, against the path")
    return problems


def _is_peer(path: Path, package: Path) -> bool:
    return path.parent == package.joinpath(*PEERS.split("."))


def _unit(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _target(module: str, package: Path) -> str:
    """The unit a name belongs to; `tailcut.Outcome` is a public name of __init__."""
    unit = _unit(module)
    is_unit = any((package / (unit + suffix)).exists() for suffix in ("", ".py", ".pyi"))
    return unit if is_unit or unit in MAY_IMPORT else "__init__"


def test_imports_point_one_way() -> None:
    assert wrong_imports(PACKAGE) == []


def test_the_table_has_no_cycle() -> None:
    """With it the table itself is a path: remove units that import nothing left, until none is left."""
    left = dict(MAY_IMPORT)
    while left:
        free = [unit for unit, targets in left.items() if not targets & left.keys() - {unit}]
        assert free, f"these import each other in a circle: {sorted(left)}"
        for unit in free:
            del left[unit]


@pytest.mark.parametrize(
    ("where", "line", "complaint"),
    [
        ("schedule/ring.py", "from tailcut.group import Group", "schedule imports group, against the path"),
        ("schedule/ring.py", "from ..policy import lag", "schedule imports policy, against the path"),
        (
            "policy/lag.py",
            "def f():\n    import tailcut.schedule.plan",
            "policy imports schedule, against the path",
        ),
        ("transform/cast.py", "from .. import Outcome", "transform imports __init__, against the path"),
        ("transport/endpoint.py", "from tailcut import group", "transport imports group, against the path"),
        ("group.py", "from .pytorch import hook", "group imports pytorch, against the path"),
        ("types.py", "from tailcut.errors import Misuse", "types imports errors, against the path"),
        ("group.py", "import torch.distributed", "group imports torch; only pytorch may"),
        ("group.py", "import_module('torch')", "group imports torch; only pytorch may"),
        ("bench/peers.py", "import torch", "bench imports torch; only pytorch may"),
        (
            "bench/rank.py",
            "from tailcut.bench.peers import gloo",
            "bench imports a peer; they are loaded by path, in ranks",
        ),
        ("helpers.py", "x = 1", "helpers has no place on the path: give it a row in MAY_IMPORT"),
    ],
)
def test_finds_a_wrong_import(tmp_path: Path, where: str, line: str, complaint: str) -> None:
    package = tmp_path / "tailcut"
    path = package / where
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n", encoding="utf-8")
    problems = wrong_imports(package)
    assert len(problems) == 1
    assert problems[0].startswith(str(path))
    assert problems[0].endswith(complaint)


def test_lets_right_imports_pass(tmp_path: Path) -> None:
    package = tmp_path / "tailcut"
    (package / "schedule").mkdir(parents=True)
    (package / "pytorch").mkdir()
    (package / "bench/peers").mkdir(parents=True)
    (package / "bench/peers/gloo.py").write_text("import torch\n")
    (package / "schedule/ring.py").write_text("from .plan import Part\nfrom ..errors import PlanError\n")
    (package / "schedule/plan.py").write_text("from tailcut import types\n")
    (package / "pytorch/hook.py").write_text("import torch\nfrom tailcut import Outcome, group\n")
    assert wrong_imports(package) == []
