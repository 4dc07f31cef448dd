"""Checks of this host: packages, MPI, shared memory, compiled kernels."""

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
NEEDED = ("click", "h5py", "numpy", "rich", "tomli_w")
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


def cpu_kernels(context: DoctorContext) -> list[Line]:
    """Show the family and the compiler of the kernels in use; check that they are those of the best family."""
    from ringtrain.ops.cpu import compile, library

    _, family = library.open_library()
    built, best = compile.read_built(), library.cpu_families()[0]
    text = texts.CPU_KERNELS(family=family, compiler=built.get("compiler", texts.COMPILER_UNKNOWN))
    if family == best:
        return [Line(OK, "CPU kernels", text)]
    if best in library.compiled_families():
        return [
            Line(OK, "CPU kernels", texts.CPU_KERNELS_CHOSEN(kernels=text, setting=library.FAMILY_SETTING, best=best))
        ]
    lacking = texts.CPU_KERNELS_LACKING(kernels=text, best=best, why=built.get("failed", {}).get(best, "not compiled"))
    return [Line(WARN, "CPU kernels", lacking, texts.CPU_KERNELS_AGAIN)]


def kernel_cache(context: DoctorContext) -> list[Line]:
    """Check that compiled kernels of CUDA are kept for the next run."""
    home = Path(context.environ.get("HOME") or os.path.expanduser("~"))
    folder = Path(context.environ.get("CUPY_CACHE_DIR") or home / ".cupy/kernel_cache")
    if not _writable(folder):
        return [Line(WARN, "CUDA kernels", texts.KERNELS_LOST, texts.KERNELS_KEEP(variable="CUPY_CACHE_DIR"))]
    return [Line(OK, "CUDA kernels", texts.KERNELS_KEPT(folder=folder))]


def _writable(folder: Path) -> bool:
    """Whether the folder exists, or can be made, and is writable."""
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
