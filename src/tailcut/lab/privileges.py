"""Whether this process may make networks, and how an ordinary user gets to: inside a user namespace.

There the user is root of a world of its own: its networks, its mounts, none of the machine's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tailcut.lab.system import NETNS_FOLDER, LabError, require

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21  # linux/capability.h
PROBE_TIMEOUT_S = 10.0
# A user may not write to /run: an empty one of its own lies over it, or only over the folder of namespaces.
_MOUNT = (
    f"mount -t tmpfs tailcut {NETNS_FOLDER} 2>/dev/null || {{ mount -t tmpfs tailcut {NETNS_FOLDER.parent} "
    f'&& mkdir {NETNS_FOLDER}; }} && exec "$@"'
)
_UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", _MOUNT, "lab")


def lacking() -> str:
    """What keeps this very process from making networks; empty when nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    effective = _effective_capabilities()
    wanted = {"CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_SYS_ADMIN": CAP_SYS_ADMIN}
    missing = [name for name, bit in wanted.items() if not effective >> bit & 1]
    if missing:
        return f"root, but without {' and '.join(missing)}: in a container, start it with --privileged"
    return ""


def user_namespaces_lacking() -> str:
    """What keeps an ordinary user from being root of its own world; empty when nothing does."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (Debian: apt-get install util-linux)"
    try:
        done = subprocess.run(
            [*_UNSHARE, "ip", "netns", "list"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or f"exit status {done.returncode}") + _advice()


def become_able() -> None:
    """Returns when this process may make networks, perhaps as the same command started anew in a world of its
    own; LabError with the remedy where it cannot."""
    ensure([sys.executable, *sys.orig_argv[1:]])
    require()


def ensure(command: Sequence[str]) -> None:
    """Returns when this process may make networks; otherwise becomes `command` where it may.

    LabError says what is missing and how to get it.
    """
    problem = lacking()
    if not problem:
        return
    other = user_namespaces_lacking()
    if other:
        raise LabError(
            f"{problem}. An ordinary user can have its own with user namespaces, but not here: {other}. "
            "Run this as root (sudo), or measure on loopback: `tailcut bench` without --lab works everywhere"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, *command])


def in_own_world() -> bool:
    """Whether this process is root only of a user namespace that one user made."""
    words = Path("/proc/self/uid_map").read_text().split()
    return len(words) == 3 and words[0] == "0" and words[2] == "1"


def _advice() -> str:
    if _number("/proc/sys/user/max_user_namespaces") == 0:
        return " (sysctl user.max_user_namespaces is 0: set it to 10000)"
    if _number("/proc/sys/kernel/unprivileged_userns_clone") == 0:
        return " (sysctl kernel.unprivileged_userns_clone is 0: set it to 1)"
    if _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1:
        return " (sysctl kernel.apparmor_restrict_unprivileged_userns is 1: set it to 0, as root)"
    return ""


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
