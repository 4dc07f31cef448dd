"""Checks of what every run needs: Python, an MPI, cores, memory that ranks share, room for compiled kernels."""

import os
import platform
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import ringtrain
from ringtrain.humanize import plural
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line, Visit
from ringtrain.transport.launcher import local_claims, local_rank_source

# Packages without which a run does not go, by the names of their modules; without mpi4py it goes on one rank.
NEEDED = ("click", "h5py", "numba", "numpy", "rich", "scipy_openblas32", "tomli_w")
WANTED_BYTES = 64 << 20  # what containers give, and too little for most models
MIB = 1 << 20
MOST_HOSTS = 8  # that are named


def python(visit: Visit) -> list[Line]:
    told = f"ringtrain {ringtrain.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        advice = f"python -m pip install {' '.join(missing)}"
        return [Line(FAIL, "python", f"{told}; not installed: {', '.join(missing)}", advice)]
    return [Line(OK, "python", told)]


def mpi(visit: Visit) -> list[Line]:
    told = visit.transport.describe()
    if "no MPI" in told:
        return [Line(WARN, "mpi", told, "for several ranks: pip install 'ringtrain[mpi]', or load the site's MPI")]
    if "thread level multiple" not in told:
        advice = "the guard cannot see ranks of other nodes: use an MPI built for threads"
        return [Line(WARN, "mpi", f"{told}, mpi4py {version('mpi4py')}", advice)]
    return [Line(OK, "mpi", f"{told}, mpi4py {version('mpi4py')}")]


def ranks(visit: Visit) -> list[Line]:
    """Where ranks are; collective."""
    transport = visit.transport
    hosts = transport.gather_json(visit.host)
    names = list(dict.fromkeys(hosts))
    counts = ", ".join(f"{host} {hosts.count(host)}" for host in names[:MOST_HOSTS])
    more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
    told = f"{plural(transport.size, 'rank')} on {plural(transport.nodes, 'node')}: {counts}{more}"
    return [Line(OK, "ranks", told)]


def local_ranks(visit: Visit) -> list[Line]:
    """Where a rank knows from which of its node it is; collective."""
    transport = visit.transport
    every = transport.gather_json([local_claims(visit.environ), transport.node])
    source = local_rank_source([claims for claims, _ in every], [node for _, node in every])
    return [Line(OK, "local rank", f"from {source}" if source else "from the order of ranks: no launcher tells it")]


def shared_memory(visit: Visit) -> list[Line]:
    """Whether the ranks of a node share memory, and how much of it there is; collective."""
    folder, transport = visit.root / "dev/shm", visit.transport
    window = transport.node_window(4096)
    own = shutil.disk_usage(folder).free if folder.is_dir() else None
    free = transport.gather_json(own)[transport.neighbours[0]]  # one number of a node, whoever looks when
    room = "" if free is None else f", {free // MIB:,} MiB free in /dev/shm"
    if window is None and transport.local_size > 1:
        advice = "ranks of a node will send messages instead: use an MPI with shared windows, and give /dev/shm room"
        return [Line(WARN, "shared memory", f"none between ranks{room}", advice)]
    if free is not None and free < WANTED_BYTES:
        advice = "gradients lie there: start the container with --shm-size=2g, or free what is there"
        return [Line(WARN, "shared memory", f"the ranks of a node share it{room}", advice)]
    return [Line(OK, "shared memory", f"the ranks of a node share it{room}")]


def kernel_caches(visit: Visit) -> list[Line]:
    """Whether what is compiled is kept for the next run."""
    home = Path(visit.environ.get("HOME") or os.path.expanduser("~"))
    own = Path(ringtrain.__file__).parent / "ops/cpu/kernels/__pycache__"
    told = visit.environ.get("NUMBA_CACHE_DIR")
    host = _first_writable([Path(told)] if told else [own, home / ".cache/numba"])
    device = _first_writable([Path(visit.environ.get("CUPY_CACHE_DIR") or home / ".cupy/kernel_cache")])
    advice = "every run compiles anew: set {} to a folder that can be written"
    return [
        Line(OK, "CPU kernels", f"are kept in {host}")
        if host
        else Line(WARN, "CPU kernels", "are not kept", advice.format("NUMBA_CACHE_DIR")),
        Line(OK, "CUDA kernels", f"are kept in {device}")
        if device
        else Line(WARN, "CUDA kernels", "are not kept", advice.format("CUPY_CACHE_DIR")),
    ]


def _first_writable(folders: list[Path]) -> Path | None:
    """The first that is there, or can be made, and can be written to."""
    for folder in folders:
        there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return folder
    return None
