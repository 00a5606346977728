"""Reads the fields of a TOML table one by one, so that every error names the file and the field."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any


class ScenarioError(ValueError):
    """A scenario that cannot be built; the text names the file, the field, and what it may hold."""


class Table:
    """One table of a file. Take each field once, then call `finish`: what is left over is a mistake."""

    def __init__(self, file: str, name: str, values: Mapping[str, Any]) -> None:
        self._file, self._name = file, name
        self._values = dict(values)
        self._known: list[str] = []

    def wrong(self, key: str, text: str) -> ScenarioError:
        field = f"{self._name}.{key}" if self._name and key else self._name or key
        return ScenarioError(f"{self._file}: {field}: {text}")

    def number(self, key: str, default: float | None, low: float, high: float) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, f"must be a number, not {value!r}")
        if not low <= value <= high:
            raise self.wrong(key, f"must be {low:g} to {high:g}, not {value!r}")
        return float(value)

    def maybe_number(self, key: str, low: float, high: float) -> float | None:
        return self.number(key, None, low, high) if self._has(key) else None

    def integer(self, key: str, default: int | None, low: int, high: int) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, f"must be a whole number, not {value!r}")
        if not low <= value <= high:
            raise self.wrong(key, f"must be {low} to {high}, not {value}")
        return value

    def maybe_integer(self, key: str, low: int, high: int) -> int | None:
        return self.integer(key, None, low, high) if self._has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str | None, choices: Sequence[str] = ()) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be a text in quotes, not {value!r}")
        if choices and value not in choices:
            raise self.wrong(key, f"must be one of {', '.join(choices)}; not {value!r}")
        return value

    def hosts(self, key: str, default: Sequence[int] | None, n: int) -> tuple[int, ...]:
        """A list of different hosts; each must be one of the scenario's `n`."""
        value = self._take(key, default)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, f"must be a list of hosts, as [0, 2]; not {value!r}")
        for host in value:
            if isinstance(host, bool) or not isinstance(host, int) or not 0 <= host < n:
                raise self.wrong(key, f"{host!r} is not a host: this scenario has hosts 0 to {n - 1}")
        if len(set(value)) != len(value):
            raise self.wrong(key, f"names a host twice: {list(value)}")
        return tuple(value)

    def texts(self, key: str, default: Sequence[str], choices: Sequence[str]) -> tuple[str, ...]:
        value = self._take(key, default)
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise self.wrong(key, f"must be a list of {', '.join(choices)}; not {value!r}")
        for entry in value:
            if entry not in choices:
                raise self.wrong(key, f"{entry!r} is none of {', '.join(choices)}")
        return tuple(value)

    def table(self, key: str) -> Table | None:
        """The table of this name, None when the file has none."""
        if not self._has(key):
            return None
        value = self._take(key, None)
        if not isinstance(value, Mapping):
            raise self.wrong(key, f"must be a table: [{key}]")
        return Table(self._file, f"{self._name}.{key}" if self._name else key, value)

    def tables(self, key: str) -> list[Table]:
        """The tables of this name, [[key]] in the file; their errors count them from 0."""
        value = self._take(key, ())
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, f"must be tables: [[{key}]]")
        for entry in value:
            if not isinstance(entry, Mapping):
                raise self.wrong(key, f"must be tables: [[{key}]]")
        return [Table(self._file, f"{key}[{number}]", entry) for number, entry in enumerate(value)]

    def finish(self) -> None:
        """Refuses fields nobody has taken."""
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(self._known))}"
            raise self.wrong(key, f"is no field; {hint}")

    def _has(self, key: str) -> bool:
        self._known.append(key)
        return key in self._values

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        value = self._values.pop(key, default)
        if value is None:
            raise self.wrong(key, "is missing")
        return value
