"""Takes the native module from TAILCUT_NATIVE, not the installed one: a sanitizer's build, or an older one.

As a pytest plugin (`python -m pytest -p fuzz.loader`) or by importing it before anything of tailcut.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

NAME = "tailcut._native"
ROOT = Path(__file__).resolve().parent.parent


def load() -> None:
    path = os.environ.get("TAILCUT_NATIVE")
    if path and NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)


load()
