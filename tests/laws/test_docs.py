"""Documents that name files and numbers stay true: links lead somewhere, the walk through the code is
complete, the page of the wire format agrees with the header that implements it.
"""

from __future__ import annotations

import re
from pathlib import Path

from laws.tree import NATIVE, PACKAGE, ROOT, cpp_files, python_files

WALK = ROOT / "docs" / "explanation" / "way-of-a-gradient.md"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
NAMED = re.compile(r"`((?:src/tailcut|native)/[\w./]+)`")


def documents(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "benchmarks").rglob("*.md")])


def broken_links(root: Path) -> list[str]:
    return [
        f"{path}: {target}"
        for path in documents(root)
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]


def not_walked(walk: str, sources: list[str]) -> tuple[list[str], list[str]]:
    """(sources the walk leaves out, names in the walk that lead nowhere). A header goes with its source."""
    named = set(NAMED.findall(walk))
    twins = {source for source in sources if source.endswith(".hpp") and source[:-3] + "cpp" in sources}
    missing = [source for source in sources if source not in named | twins]
    return missing, sorted(name for name in named if name not in sources and not (ROOT / name).is_dir())


def sources() -> list[str]:
    files = [path for path in python_files() + cpp_files() if {PACKAGE, NATIVE} & set(path.parents)]
    return [str(path.relative_to(ROOT)) for path in files if NATIVE / "tests" not in path.parents]


def test_links_lead_somewhere() -> None:
    assert len(documents(ROOT)) > 5
    assert broken_links(ROOT) == []


def test_finds_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[up](../README.md#x) [out](https://x.org/y) [lost](b.md)")
    (tmp_path / "README.md").write_text("[a](docs/a.md)")
    assert broken_links(tmp_path) == [f"{tmp_path / 'docs' / 'a.md'}: b.md"]


def test_the_walk_passes_every_file() -> None:
    missing, lost = not_walked(WALK.read_text(encoding="utf-8"), sources())
    assert missing == [], f"give each of these its line in {WALK.relative_to(ROOT)}"
    assert lost == [], "these are named but do not exist"


def test_finds_a_file_the_walk_left_out() -> None:
    walk = "`native/engine/a.cpp` places, `src/tailcut/old.py` did, `native/engine` holds"
    files = ["native/engine/a.cpp", "native/engine/a.hpp", "native/engine/b.hpp"]
    assert not_walked(walk, files) == (["native/engine/b.hpp"], ["src/tailcut/old.py"])


def test_the_page_of_the_wire_format_agrees_with_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
    code = (NATIVE / "engine" / "wire.hpp").read_text(encoding="utf-8")
    constants = dict(re.findall(r"constexpr \w+ k(\w+) = (\d+)", code))
    assert f"Version {constants['Version']}." in page
    assert f"a header of {constants['HeaderBytes']} bytes" in page
    assert f"path state, {constants['PathStateBytes']} bytes" in page
    assert f"fingerprint, {constants['EnterBytes']} bytes" in page
    assert f"of a Report, {constants['EntryBytes']} bytes" in page
    assert f"at most {int(constants['ControlBytes']):,} bytes" in page
    kinds = re.search(r"enum class Kind[^{]*{(.*?)};", code, re.DOTALL)
    assert kinds is not None
    table = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \|", page, re.MULTILINE)
    assert table == [(value, name) for name, value in re.findall(r"\bk(\w+) = (\d+),", kinds.group(1))]
