"""The facade: membership, operation identity, sync and async collectives."""

from tailcut.group.connecting import connect
from tailcut.group.facade import Group
from tailcut.group.work import Work

__all__ = ["Group", "Work", "connect"]
