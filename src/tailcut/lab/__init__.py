"""The lab: small networks of this machine's own, with the rate, the packet size and the loss of real ones."""

from tailcut.lab.hosts import HostCounters, Hosts
from tailcut.lab.leftovers import clean
from tailcut.lab.opened import VALID, Cell, CellRecord, Lab, open_scenario
from tailcut.lab.scenario import Scenario
from tailcut.lab.system import LabError, missing_tools

__all__ = [
    "VALID",
    "Cell",
    "CellRecord",
    "HostCounters",
    "Hosts",
    "Lab",
    "LabError",
    "Scenario",
    "clean",
    "missing_tools",
    "open_scenario",
]
