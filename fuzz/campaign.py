"""Runs random scenarios by the thousand: `make fuzz`, or one seed again with `--first SEED --count 1`.

Ends with the first scenario that is not right, and prints the command that shows it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import fuzz.loader  # noqa: F401  (first: it chooses the native module)


def main() -> int:
    from fuzz.shrink import shrink

    from engine.random_scenarios import random_scenario
    from engine.scenario import Scenario, Wrong, run

    def wrong(scenario: Scenario) -> str:
        try:
            run(scenario)
        except Wrong as problem:
            return str(problem)
        return ""

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=3000, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for making a failure smaller")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args()
    begun, failed, done = time.monotonic(), 0, 0
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - begun > options.seconds:
            break
        done += 1
        scenario = random_scenario(random.Random(seed))
        if not wrong(scenario):
            continue
        failed += 1
        print(f"seed {seed} is not right: .venv/bin/python -m fuzz.campaign --first {seed} --count 1")
        print(wrong(shrink(scenario, lambda each: bool(wrong(each)), options.shrink)), flush=True)
        if not options.keep_going:
            break
    print(
        f"{done} scenarios from seed {options.first} in {time.monotonic() - begun:.0f} s, {failed} not right"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
