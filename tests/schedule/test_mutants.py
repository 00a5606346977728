"""Any single edit of a right Plan is rejected, or the executor finds that it changes nothing.

And the other way round: what is rejected is broken in some order of firing, unless a rule of the Plan that
the executor does not know (ports, rounds, stages, fields) is what rejects it.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.mutants import mutants
from schedule.plans import KIND_NAMES, KINDS, Plan, plan, verdict
from schedule.straggler import straggler_plan
from tailcut.schedule import PlanError, check
from tailcut.types import Collective

# Texts of the rules that say nothing about values: what breaks only these, runs.
RULES_ONLY = re.compile(
    r"in round|in stage|of stage|stands behind|is before the first|stages$|leaves in round"
    r"|differs from rank 0|^entry|no whole number|cannot have inputs"
    r"|a Send, which produces nothing|names a step twice|not combined in rank order"
)


def outcome(label: str, mutant: Plan, *, rank_ordered: bool) -> str:
    """Fails if checker and executor contradict each other; else what became of this mutant."""
    try:
        check(mutant, itemsize=4)
    except PlanError as problem:
        reason = str(problem).split("): ", 1)[-1]
        if RULES_ONLY.search(reason):
            return "against a rule"
        found = verdict(mutant, itemsize=4, seeds=range(500), rank_ordered=rank_ordered)
        # One exception: a Combine done twice writes the same value twice, but the checker need not see that.
        twice = label == "repeat step" and "writes too, sooner or later" in reason
        assert found or twice, f"{label}: rejected ({problem}), but it runs"
        return "broken"
    found = verdict(mutant, itemsize=4, seeds=range(8), rank_ordered=rank_ordered)
    assert found is None, f"{label}: accepted, but {found}"
    return f"harmless: {label}"


@pytest.mark.parametrize(("family", "collective"), KINDS, ids=KIND_NAMES)
@pytest.mark.parametrize("count", [1, 4])
def test_all_mutants_of_two_ranks(family: str, collective: Collective, count: int) -> None:
    parts = plan(family, collective, 2, count)
    seen = Counter(
        outcome(label, mutant, rank_ordered=family != "ring")
        for rank in range(2)
        for label, mutant in mutants(parts, rank, 4)
    )
    assert seen["broken"] > 30
    assert seen["against a rule"] > 30
    harmless = {name.removeprefix("harmless: ") for name in seen if name.startswith("harmless")}
    assert harmless <= {
        "part stage_bytes",  # more scratch than needed
        "swap steps",  # another order in the list, or two Recvs exchanged
        "send after",  # waits for more than it needs
        "combine after",
        "send retain",  # kept longer than needed
        "combine stage",
        "combine inputs swapped",  # in a ring, where one rank's order is everybody's
        "combine input",  # the same value from where else it lies
    }


@st.composite
def single_edits(draw: st.DrawFn) -> tuple[str, Plan, bool]:
    """(what was edited, edited Plan, whether results must be in rank order)"""
    family, collective = draw(st.sampled_from([*KINDS, ("straggler", Collective.ALL_REDUCE)]))
    if family == "straggler":
        parts = straggler_plan(draw(st.sampled_from([3, 4])), draw(st.sampled_from([4, 12])))
    else:
        size = draw(st.integers(3, 5))
        rotation = draw(st.integers(0, size - 1)) if collective is Collective.ALL_REDUCE else 0
        parts = plan(family, collective, size, draw(st.integers(1, 2 * size + 2)), rotation=rotation)
    rank = draw(st.integers(0, len(parts) - 1))
    label, mutant = draw(st.sampled_from(list(mutants(parts, rank, 4))))
    return label, mutant, family in ("transpose", "small")


@settings(max_examples=150, deadline=None)
@given(single_edits())
def test_mutants_of_more_ranks(edited: tuple[str, Plan, bool]) -> None:
    label, mutant, rank_ordered = edited
    outcome(label, mutant, rank_ordered=rank_ordered)
