"""The stub says about the native module what is true: the same names, the same parameters in order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tailcut
from tailcut import _native

STUB = Path(tailcut.__file__).with_name("_native.pyi")
# Classes that Python gets only from others: their constructor is that of `object`.
HANDED_OUT = {"Channel.__init__", "Operation.__init__"}


def stub_names() -> dict[str, ast.stmt]:
    """`name` or `Class.name` -> its declaration."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef):
                found[f"{node.name}.{each.name}"] = each
    return found


def native_names() -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in vars(_native).items():
        if name.startswith("__"):
            continue
        found[name] = value
        for member, described in vars(value).items() if isinstance(value, type) else ():
            if not member.startswith("__") or member == "__init__":
                found[f"{name}.{member}"] = described
    return found


def test_the_same_names() -> None:
    assert set(stub_names()) == set(native_names()) - HANDED_OUT


def test_the_same_parameters() -> None:
    native = native_names()
    compared = 0
    for path, node in stub_names().items():
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        signature = (native[path].__doc__ or "").splitlines()[0]
        declared = [each.arg for each in (*node.args.args, *node.args.kwonlyargs) if each.arg != "self"]
        assert re.findall(r"(\w+): ", signature) == declared, signature
        compared += 1
    assert compared > 20
