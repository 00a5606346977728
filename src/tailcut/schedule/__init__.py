"""Schedules as values: what each rank sends, receives and combines; pure, checked, chosen by size."""

from collections.abc import Mapping
from types import MappingProxyType

from tailcut.schedule import ring, small, transpose
from tailcut.schedule.check import check
from tailcut.schedule.choose import Choice, Crossover, choose, estimated_crossover, measured_crossover
from tailcut.schedule.plan import (
    Buffer,
    Build,
    Combine,
    Part,
    PlanError,
    Recv,
    Region,
    Send,
    Step,
    native_steps,
    whole,
)

# By name. Ranks announce a family by its position here: append, never reorder.
FAMILIES: Mapping[str, Build] = MappingProxyType(
    {ring.FAMILY: ring.build, transpose.FAMILY: transpose.build, small.FAMILY: small.build}
)


def family_number(family: str) -> int:
    """The number under which ranks announce this family to each other."""
    return list(FAMILIES).index(family)


__all__ = [
    "FAMILIES",
    "Buffer",
    "Build",
    "Choice",
    "Combine",
    "Crossover",
    "Part",
    "PlanError",
    "Recv",
    "Region",
    "Send",
    "Step",
    "check",
    "choose",
    "estimated_crossover",
    "family_number",
    "measured_crossover",
    "native_steps",
    "whole",
]
