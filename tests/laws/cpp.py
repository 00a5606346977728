"""Reads C++ just well enough for the laws: code without comments and literals, and where functions begin.

It is no parser. It relies on balanced braces once comments, literals and preprocessor lines are blanked. A
file that is not balanced then (two branches of an #if that each open a brace) is an error, never a silent
pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NOT_CODE = re.compile(
    r"""
      //(?:\\\n|[^\n])*                                    # comment to the end of the line
    | /\*.*?\*/                                            # block comment
    | (?:u8|[uUL])?R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"   # raw string
    | "(?:\\.|[^"\\\n])*"                                  # string
    | (?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'                 # character, not the separator of 1'000
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]", re.MULTILINE)
_LABEL = re.compile(r"\s*(?:public|private|protected)\s*:(?!:)")
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|concept)\b|\bextern\s*$")
_ASSIGNMENT = re.compile(r"(?<![=<>!+\-*/%&|^])=(?![=])")
_LAMBDA = re.compile(r"\]\s*(?:\(|$|mutable\b|->)")


@dataclass(frozen=True)
class Function:
    name: str
    line: int  # 1-based, where the head begins
    lines: int  # head and body


def code(text: str) -> str:
    """The text with comments, literals and directives blanked; every remaining character keeps its place."""
    without = _NOT_CODE.sub(_blank, text)
    return _DIRECTIVE.sub(_blank, without)


def includes(text: str) -> list[tuple[bool, str]]:
    """(system, name) of every include; system means angle brackets."""
    kept = re.sub(r"//[^\n]*|/\*.*?\*/", _blank, text, flags=re.DOTALL)
    return [(bracket == "<", name) for bracket, name in _INCLUDE.findall(kept)]


def functions(text: str) -> list[Function]:
    """Every function with a body at namespace or class scope, and lambdas that stand there."""
    source = code(text)
    partner = _pair_braces(source)
    found: list[Function] = []
    head_start = position = 0
    while position < len(source):
        char = source[position]
        if char in ";}":
            head_start = position + 1
        elif char == "{":
            head, end = source[head_start:position], partner[position]
            kind = _kind(head)
            if kind == "scope":  # look inside
                head_start = position + 1
            else:  # step over; a member initialiser `: a{1}, b{2} {` and a value leave the head open
                position = end
                if kind == "function" and source[end + 1 :].lstrip()[:1] not in ("{", ","):
                    found.append(_function(source, head_start, end))
                    head_start = end + 1
        position += 1
    return found


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _pair_braces(source: str) -> dict[int, int]:
    """Position of each opening brace to the position of its closing one."""
    partner: dict[int, int] = {}
    open_braces: list[int] = []
    for match in re.finditer(r"[{}]", source):
        if match.group() == "{":
            open_braces.append(match.start())
        elif not open_braces:
            raise ValueError(f"line {_line(source, match.start())}: a brace closes what nothing opened")
        else:
            partner[open_braces.pop()] = match.start()
    if open_braces:
        raise ValueError(f"line {_line(source, open_braces[-1])}: this brace is never closed")
    return partner


def _without_brackets(head: str) -> str:
    """The head without template argument lists and the insides of parentheses and braces."""
    previous = None
    while previous != head:
        previous = head
        head = re.sub(r"\([^()]*\)", " \x00 ", head)  # NUL marks a pair of parentheses
        head = re.sub(r"\{[^{}]*\}", " ", head)
    return re.sub(r"\btemplate\s*<[^;]*?>(?=\s*\w)", " ", head)


def _kind(head: str) -> str:
    """What the brace after this head opens: "scope" (namespace, class), "function", or a "value"."""
    flat = _without_brackets(head)
    front = flat.split("\x00")[0]  # what stands before the parameters
    assigns = bool(_ASSIGNMENT.search(front)) and "operator" not in front
    if assigns:
        return "function" if _LAMBDA.search(front + ("(" if "\x00" in flat else "")) else "value"
    if _SCOPE.search(front) and not _returns_elaborated(flat):
        return "scope"
    return "function" if "\x00" in flat or "(" in flat else "value"


def _returns_elaborated(flat: str) -> bool:
    """`struct Point make(...)`: a type with its keyword before a name and parameters."""
    return bool(re.search(r"\b(?:struct|class|union|enum)\s+[\w:]+[\s*&]+\w+\s*\x00", flat))


def _function(source: str, start: int, end: int) -> Function:
    head = source[start:end]
    while label := _LABEL.match(head):
        start += label.end()
        head = head[label.end() :]
    start += len(head) - len(head.lstrip())
    first, last = _line(source, start), _line(source, end)
    named = re.search(r"(operator\s*\S+?|[~\w:]+)\s*\(", source[start:end])
    return Function(named.group(1) if named else "lambda", first, last - first + 1)


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1
