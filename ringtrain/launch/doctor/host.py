"""Checks of this host: packages, MPI, shared memory, folders of compiled kernels."""

import os
import platform
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import ringtrain
from ringtrain.humanize import plural
from ringtrain.launch import texts
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, DoctorContext, Line

# Packages that every run needs, by the names of their modules; without mpi4py a run has one rank.
NEEDED = ("click", "h5py", "numba", "numpy", "rich", "scipy_openblas32", "tomli_w")
WANTED_BYTES = 64 << 20  # the default of containers, and too little for most models
MIB = 1 << 20
MOST_HOSTS = 8  # that are named


def python(context: DoctorContext) -> list[Line]:
    """Show the versions of Python and the packages."""
    reported = texts.PYTHON(ringtrain=ringtrain.__version__, python=platform.python_version(), numpy=np.__version__)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        lacks = texts.PYTHON_LACKS(versions=reported, names=", ".join(missing))
        return [Line(FAIL, "python", lacks, texts.PYTHON_INSTALL(names=" ".join(missing)))]
    return [Line(OK, "python", reported)]


def mpi(context: DoctorContext) -> list[Line]:
    """Show the MPI, or explain its absence."""
    reported = context.transport.describe()
    if "no MPI" in reported:
        return [Line(WARN, "mpi", reported, texts.MPI_INSTALL)]
    versions = texts.MPI_VERSIONS(mpi=reported, mpi4py=version("mpi4py"))
    if "thread level multiple" not in reported:
        return [Line(WARN, "mpi", versions, texts.MPI_THREADS)]
    return [Line(OK, "mpi", versions)]


def ranks(context: DoctorContext) -> list[Line]:
    """Show the number of ranks on each host; collective."""
    transport = context.transport
    hosts = transport.gather_json(context.host)
    names = list(dict.fromkeys(hosts))
    counts = ", ".join(f"{host} {hosts.count(host)}" for host in names[:MOST_HOSTS])
    more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
    count, nodes = plural(transport.size, "rank"), plural(transport.nodes, "node")
    return [Line(OK, "ranks", texts.RANKS_HOSTS(ranks=count, nodes=nodes, hosts=f"{counts}{more}"))]


def shared_memory(context: DoctorContext) -> list[Line]:
    """Check that the ranks of a node share memory, and that there is enough; collective."""
    folder, transport = context.root / "dev/shm", context.transport
    window = transport.node_window(4096)
    own = shutil.disk_usage(folder).free if folder.is_dir() else None
    free = transport.gather_json(own)[transport.neighbours[0]]  # the same number on all ranks of a node
    room = "" if free is None else texts.SHARED_MEMORY_ROOM(mib=free // MIB)
    if window is None and transport.local_size > 1:
        return [Line(WARN, "shared memory", texts.SHARED_MEMORY_NONE(room=room), texts.SHARED_MEMORY_USE)]
    text = texts.SHARED_MEMORY(room=room)
    if free is not None and free < WANTED_BYTES:
        return [Line(WARN, "shared memory", text, texts.SHARED_MEMORY_MORE)]
    return [Line(OK, "shared memory", text)]


def kernel_caches(context: DoctorContext) -> list[Line]:
    """Check that compiled kernels are kept for the next run."""
    home = Path(context.environ.get("HOME") or os.path.expanduser("~"))
    own = Path(ringtrain.__file__).parent / "ops/cpu/kernels/__pycache__"
    reported = context.environ.get("NUMBA_CACHE_DIR")
    host = _first_writable([Path(reported)] if reported else [own, home / ".cache/numba"])
    device = _first_writable([Path(context.environ.get("CUPY_CACHE_DIR") or home / ".cupy/kernel_cache")])
    return [_kept("CPU kernels", host, "NUMBA_CACHE_DIR"), _kept("CUDA kernels", device, "CUPY_CACHE_DIR")]


def _kept(name: str, folder: Path | None, variable: str) -> Line:
    if folder is None:
        return Line(WARN, name, texts.KERNELS_LOST, texts.KERNELS_KEEP(variable=variable))
    return Line(OK, name, texts.KERNELS_KEPT(folder=folder))


def _first_writable(folders: list[Path]) -> Path | None:
    """Return the first folder that exists, or can be made, and is writable."""
    for folder in folders:
        there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return folder
    return None
