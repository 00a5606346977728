"""Law 6: no file above 500 lines, no function above 70, medians near 150."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

from laws import cpp
from laws.tree import PACKAGE, ROOT, cpp_files, python_files

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
MEDIAN_LINES_MAX = 150  # of the package's Python files


def long_files(paths: list[Path]) -> list[str]:
    counted = [(path, count_lines(path)) for path in paths]
    return [f"{path}: {lines} lines" for path, lines in counted if lines > FILE_LINES_MAX]


def long_functions(paths: list[Path]) -> list[str]:
    return [
        f"{path}:{line} {name}: {lines} lines"
        for path in paths
        for name, line, lines in functions(path)
        if lines > FUNCTION_LINES_MAX
    ]


def functions(path: Path) -> list[tuple[str, int, int]]:
    """(name, first line, number of lines) of every function in a Python or C++ file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".py", ".pyi"):
        try:
            return [(found.name, found.line, found.lines) for found in cpp.functions(text)]
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from problem
    return [
        (node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_file_is_long() -> None:
    assert long_files(python_files() + cpp_files()) == []


def test_no_function_is_long() -> None:
    assert long_functions(python_files() + cpp_files()) == []


def test_the_median_file_is_short(record_property: pytest.RecordProperty) -> None:
    package = statistics.median(count_lines(path) for path in python_files() if PACKAGE in path.parents)
    everything = statistics.median(count_lines(path) for path in python_files())
    record_property("median_lines_package", package)
    print(f"median lines of Python files: {package:g} in the package, {everything:g} in all")
    assert package <= MEDIAN_LINES_MAX


def test_the_laws_see_the_tree() -> None:
    """An empty list of files would keep every law."""
    assert ROOT / "tests/laws/test_sizes.py" in python_files()
    assert any(path.name == "module.cpp" for path in cpp_files())
    assert any(found.name == "NB_MODULE" for path in cpp_files() for found in cpp.functions(path.read_text()))


def planted(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_finds_a_long_file(tmp_path: Path) -> None:
    just = planted(tmp_path, "just.py", ["x = 1"] * FILE_LINES_MAX)
    above = planted(tmp_path, "above.py", ["x = 1"] * (FILE_LINES_MAX + 1))
    assert long_files([just, above]) == [f"{above}: 501 lines"]


@pytest.mark.parametrize(
    ("name", "before", "first", "line", "after"),
    [
        ("a.py", [], "async def long() -> None:", "    x = 1", []),
        ("a.py", ["class A:", "    @property"], "    def long(self) -> None:", "        x = 1", []),
        ("a.cpp", [], "int long_one(int a) {", "  a += 1;", ["}"]),
        ("a.cpp", ["namespace {", "class A {", " public:"], "A() : a{1}, b{2} {", "  a++;", ["}", "};", "}"]),
        ("a.hpp", ["template <class T>"], "struct A { void f(T t = {}) const {", "g('{');", ["}", "};"]),
        ("a.hpp", [], "A& operator=(const A&) noexcept {", 'x = "}";  // }', ["}"]),
        ("a.cpp", [], "static const auto table = [](int x) -> int {", "x /= 2;", ["};"]),
        ("a.cpp", [], "NB_MODULE(_native, m) {", '/* { */ m.f(R"({{)", 1\'000);', ["}"]),
    ],
)
def test_finds_a_long_function(
    tmp_path: Path, name: str, before: list[str], first: str, line: str, after: list[str]
) -> None:
    body = [line] * (FUNCTION_LINES_MAX - 1 - len(after[:1]))  # then head and end make the limit
    just = planted(tmp_path, "just_" + name, [*before, first, *body, *after])
    above = planted(tmp_path, "above_" + name, [*before, first, *body, line, *after])
    found = long_functions([just, above])
    assert len(found) == 1
    assert found[0].startswith(f"{above}:{len(before) + 1} ")
    assert found[0].endswith(f": {FUNCTION_LINES_MAX + 1} lines")


def test_steps_over_tables_and_counts_neighbours(tmp_path: Path) -> None:
    table = ["const int table[] = {", *["  1, 2,"] * 200, "};"]
    rest = [
        "struct B { int x{3}; int y = {4}; };",
        "void f() {}",
        "enum class C { A, B };",
        "void g() {",
        "}",
    ]
    path = planted(tmp_path, "table.cpp", table + rest)
    assert functions(path) == [("f", 204, 1), ("g", 206, 2)]


def test_an_unbalanced_file_is_an_error(tmp_path: Path) -> None:
    path = planted(tmp_path, "odd.cpp", ["#if A", "void f() {", "#else", "void g() {", "#endif", "}"])
    with pytest.raises(ValueError, match=r"odd\.cpp: line 2: this brace is never closed"):
        functions(path)
