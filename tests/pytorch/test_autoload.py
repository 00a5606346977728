"""What `import torch` costs and risks because tailcut is installed: nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")


def python(program: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_torch_knows_the_backend_and_has_loaded_nothing_of_ours() -> None:
    program = """
import sys, torch
ours = sorted(name for name in sys.modules if name.split(".")[0] == "tailcut")
assert ours == ["tailcut", "tailcut.pytorch", "tailcut.pytorch.autoload"], ours
assert "tailcut" in torch.distributed.Backend.backend_list
"""
    assert python(program) == ""


def test_a_broken_engine_does_not_break_torch() -> None:
    program = """
import sys
sys.modules["tailcut._native"] = None  # importing it fails
import torch
assert "tailcut" in torch.distributed.Backend.backend_list
"""
    python(program)


def test_a_registration_that_fails_is_a_warning() -> None:
    program = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch, torch.distributed as dist
assert "tailcut" not in dist.Backend.backend_list
def refuse(*args, **kwargs): raise RuntimeError("planted")
dist.Backend.register_backend = refuse
from tailcut.pytorch.autoload import autoload
autoload()
"""
    assert "the backend could not be registered: planted" in python(program)
