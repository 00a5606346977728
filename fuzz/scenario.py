"""Runs scenarios given as JSON, the way failing tests print them."""

from __future__ import annotations

import sys

import fuzz.loader  # noqa: F401  (first: it chooses the native module)


def main() -> int:
    from engine.scenario import Scenario, Wrong, run

    for text in sys.argv[1:]:
        try:
            report = run(Scenario.from_json(text))
        except Wrong as problem:
            print(problem)
            return 1
        print(f"right; {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
