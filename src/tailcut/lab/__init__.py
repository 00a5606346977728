"""The lab: small networks of this machine's own, with the rate, the packet size and the loss of real ones."""

from tailcut.lab.hosts import HostCounters, Hosts
from tailcut.lab.leftovers import clean
from tailcut.lab.system import LabError, missing_tools

__all__ = ["HostCounters", "Hosts", "LabError", "clean", "missing_tools"]
