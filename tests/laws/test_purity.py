"""Law 3: schedule, policy, transform and the native engine open no socket, read no clock, start no thread
and import no torch. Time, bytes and randomness are passed in, so that the simulator runs the same code.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from laws import cpp
from laws.imports import imports
from laws.tree import CPP_SUFFIXES, NATIVE, PACKAGE

PURE_PACKAGES = ("schedule", "policy", "transform")
FORBIDDEN_MODULES = frozenset(
    [
        "asyncio",
        "concurrent",
        "ctypes",
        "datetime",
        "fcntl",
        "glob",
        "http",
        "io",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "sched",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "torch",
        "urllib",
        "_thread",
    ]
)
FORBIDDEN_CALLS = frozenset({"open", "input", "print", "exec", "eval", "breakpoint"})

ENGINE_FOLDERS = ("engine", "wire")
FORBIDDEN_INCLUDES = re.compile(
    r"""
    (sys|netinet|arpa|net|linux)/.*                                        # sockets, files, the kernel
    | (unistd|fcntl|poll|pthread|time|semaphore|signal|dirent|netdb|dlfcn|io_uring|liburing)\.h
    | c?time | ctime | chrono | csignal                                    # clocks
    | thread | future | condition_variable | stop_token | barrier | latch | semaphore | coroutine
    | iostream | fstream | cstdio | stdio\.h | filesystem | syncstream | print
    | (Python\.h|nanobind/.*|pybind11/.*|torch/.*)
    """,
    re.VERBOSE,
)
FORBIDDEN_NATIVE_CALLS = re.compile(
    r"""
    \b(?:clock_gettime|gettimeofday|clock_getres|nanosleep|usleep|rdtscp?|__rdtscp?|_rdtsc|__builtin_ia32_rdtsc)\b
    | \bstd::(?:chrono|this_thread|jthread|thread|async|random_device)\b
    | \b(?:getrandom|arc4random|srand|getenv|pthread_\w+)\s*\(
    | (?<![\w.>:])(?:std::|::)?time\s*\(\s*(?:NULL|nullptr|0|&\w+)\s*\)
    """,
    re.VERBOSE,
)


def impure_python(package: Path) -> list[str]:
    problems = []
    for name in PURE_PACKAGES:
        for path in sorted((package / name).rglob("*.py")):
            for found in imports(path, package):
                if found.module.split(".")[0] in FORBIDDEN_MODULES:
                    problems.append(f"{path}:{found.line}: imports {found.module}")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in FORBIDDEN_CALLS:
                    problems.append(f"{path}:{node.lineno}: calls {ast.unparse(node.func)}")
    return problems


def impure_native(native: Path) -> list[str]:
    """Looks at the engine's files and at everything of ours they include, however far away."""
    files = (path for name in ENGINE_FOLDERS for path in (native / name).rglob("*"))
    waiting = [path for path in files if path.suffix in CPP_SUFFIXES]
    seen: set[Path] = set()
    problems: list[str] = []
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        for _, name in cpp.includes(text):
            ours = [base / name for base in (path.parent, native) if (base / name).is_file()]
            waiting += [file.resolve() for file in ours[:1]]
            if not ours and FORBIDDEN_INCLUDES.fullmatch(name):
                problems.append(f"{path}: includes {name}")
        for found in FORBIDDEN_NATIVE_CALLS.finditer(cpp.code(text)):
            problems.append(f"{path}: uses {found.group()}")
    return problems


def test_pure_packages_are_pure() -> None:
    assert impure_python(PACKAGE) == []


def test_the_native_engine_is_pure() -> None:
    assert impure_native(NATIVE) == []


def test_the_law_sees_what_it_judges() -> None:
    """A folder that was renamed would keep every law."""
    assert list((PACKAGE / "schedule").rglob("*.py"))
    assert list((NATIVE / "engine").rglob("*.cpp"))


@pytest.mark.parametrize("package", PURE_PACKAGES)
@pytest.mark.parametrize(
    "line",
    [
        "import socket",
        "import time",
        "from time import monotonic_ns",
        "from threading import Lock",
        "import asyncio.events",
        "import torch",
        "def f():\n    from os import read",
        "__import__('time')",
        "text = open('x').read()",
    ],
)
def test_finds_impure_python(tmp_path: Path, package: str, line: str) -> None:
    path = tmp_path / "tailcut" / package / "inner" / "deadline.py"
    path.parent.mkdir(parents=True)
    path.write_text("import math\n", encoding="utf-8")
    assert impure_python(tmp_path / "tailcut") == []
    path.write_text(line + "\n", encoding="utf-8")
    assert len(impure_python(tmp_path / "tailcut")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "#include <sys/socket.h>",
        "#include <thread>",
        "  #  include <chrono>",
        "#include <ctime>",
        "#include <unistd.h>",
        "#include <netinet/udp.h>",
        "#include <nanobind/nanobind.h>",
        "auto now = std::chrono::steady_clock::now();",
        "long seconds() { return ::time(nullptr); }",
        "void nap() { clock_gettime(CLOCK_MONOTONIC, &ts); }",
        "std::random_device entropy;",
    ],
)
@pytest.mark.parametrize("where", ["engine/repair.cpp", "shared/clock.hpp"])
def test_finds_an_impure_engine(tmp_path: Path, where: str, line: str) -> None:
    for name, text in {
        "engine/repair.cpp": '#include <cstring>\n#include "shared/clock.hpp"\n// std::chrono, <thread>\n',
        "shared/clock.hpp": "#pragma once\nstruct Timer { long time() const; };  /* time(0) */\n",
        "udp/driver.cpp": "#include <sys/socket.h>\n#include <thread>\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert impure_native(tmp_path) == []
    with (tmp_path / where).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    assert len(impure_native(tmp_path)) == 1
