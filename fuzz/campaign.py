"""Runs random scenarios by the thousand: `make fuzz`, or one seed again with `--first SEED --count 1`.

Ends with the first scenario that is not right, makes it smaller, and prints the command that shows it again.
The scenarios run in a process of their own, so that one which kills it is named too.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time

import fuzz.loader  # noqa: F401  (first: it chooses the native module)

WORKER = "--worker"
AGAIN = ".venv/bin/python -m fuzz.campaign --count 1 --first"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=3000, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for making a failure smaller")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def work(options: argparse.Namespace) -> int:
    """Runs them; says the seed before each, for whoever survives this process."""
    from fuzz.shrink import shrink

    from engine.random_scenarios import random_scenario
    from engine.scenario import Report, Scenario, Wrong, run

    def attempt(scenario: Scenario) -> Report | str:
        try:
            return run(scenario)
        except Wrong as problem:
            return str(problem)

    def fails(scenario: Scenario) -> bool:
        return isinstance(attempt(scenario), str)

    begun, failed, done, repairs, controls = time.monotonic(), 0, 0, 0.0, 0.0
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - begun > options.seconds:
            break
        print(f"seed {seed}", flush=True)
        done += 1
        scenario = random_scenario(random.Random(seed))
        got = attempt(scenario)
        if isinstance(got, str):
            failed += 1
            print(f"{AGAIN} {seed}: not right; the smallest found like it:")
            print(attempt(shrink(scenario, fails, options.shrink)), flush=True)
            if not options.keep_going:
                break
        elif got.planned >= 1000:
            in_order = not scenario.network.get("jitter_ns") and got.lost >= 50
            repairs = max(repairs, got.repairs_per_loss() if in_order else 0)
            controls = max(controls, got.controls_per_data())
    print(
        f"{done} scenarios from seed {options.first} in {time.monotonic() - begun:.0f} s, {failed} not right"
    )
    print(
        f"at most {repairs:.2f} repairs for a lost packet, {controls:.2f} control packets for a data packet"
    )
    return 1 if failed else 0


def main() -> int:
    options = parse()
    if options.worker:
        return work(options)
    seed = ""
    command = [sys.executable, "-m", "fuzz.campaign", WORKER, *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.startswith("seed "):
                seed = line.split()[1]
            else:
                print(line, end="", flush=True)
    if worker.returncode not in (0, 1):
        print(f"{AGAIN} {seed}: ends the process with {worker.returncode}")
    return 1 if worker.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
