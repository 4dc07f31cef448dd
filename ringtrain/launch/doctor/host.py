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
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, DoctorContext, Line

# Packages that every run needs, by the names of their modules; without mpi4py a run has one rank.
NEEDED = ("click", "h5py", "numpy", "rich", "tomli_w")
WANTED_BYTES = 64 << 20  # the default of containers, and too little for most models
MIB = 1 << 20
MOST_HOSTS = 8  # that are named


def python(context: DoctorContext) -> list[Line]:
    """Show the versions of Python and the packages."""
    reported = f"ringtrain {ringtrain.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        lacks = f"{reported}; not installed: {', '.join(missing)}"
        return [Line(FAIL, "python", lacks, f"python -m pip install {' '.join(missing)}")]
    return [Line(OK, "python", reported)]


def mpi(context: DoctorContext) -> list[Line]:
    """Show the MPI, or explain its absence."""
    reported = context.transport.describe()
    if "no MPI" in reported:
        return [Line(WARN, "mpi", reported, "for several ranks: pip install 'ringtrain[mpi]', or load the site's MPI")]
    versions = f"{reported}, mpi4py {version('mpi4py')}"
    if "thread level multiple" not in reported:
        return [
            Line(
                WARN,
                "mpi",
                versions,
                "use an MPI with thread level multiple: without it the guard sees no rank of another node",
            )
        ]
    return [Line(OK, "mpi", versions)]


def ranks(context: DoctorContext) -> list[Line]:
    """Show the number of ranks on each host; collective."""
    transport = context.transport
    hosts = transport.gather_json(context.host)
    names = list(dict.fromkeys(hosts))
    counts = ", ".join(f"{host} {hosts.count(host)}" for host in names[:MOST_HOSTS])
    more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
    count, nodes = plural(transport.size, "rank"), plural(transport.nodes, "node")
    return [Line(OK, "ranks", f"{count} on {nodes}: {f'{counts}{more}'}")]


def shared_memory(context: DoctorContext) -> list[Line]:
    """Check that the ranks of a node share memory, and that there is enough; collective."""
    folder, transport = context.root / "dev/shm", context.transport
    window = transport.node_window(4096)
    own = shutil.disk_usage(folder).free if folder.is_dir() else None
    free = transport.gather_json(own)[transport.neighbours[0]]  # the same number on all ranks of a node
    room = "" if free is None else f", {free // MIB:,} MiB free in /dev/shm"
    if window is None and transport.local_size > 1:
        return [
            Line(
                WARN,
                "shared memory",
                f"none between ranks{room}",
                "ranks of a node will send messages instead: use an MPI with shared windows, and give /dev/shm room",
            )
        ]
    text = f"the ranks of a node share it{room}"
    if free is not None and free < WANTED_BYTES:
        return [
            Line(
                WARN,
                "shared memory",
                text,
                "gradients lie there: start the container with --shm-size=2g, or free space there",
            )
        ]
    return [Line(OK, "shared memory", text)]


def cpu_kernels(context: DoctorContext) -> list[Line]:
    """Show the family and the compiler of the kernels in use; check that they are those of the best family."""
    from ringtrain.ops.cpu import compile, library

    _, family = library.open_library()
    built, best = compile.read_built(), library.cpu_families()[0]
    text = f"{family}, compiled by {built.get('compiler', 'an unknown compiler')}"
    if family == best:
        return [Line(OK, "CPU kernels", text)]
    if best in library.compiled_families():
        return [Line(OK, "CPU kernels", f"{text}; {library.FAMILY_SETTING} asks for them, the CPU has {best}")]
    lacking = f"{text}; the CPU has {best}, which is not compiled: {built.get('failed', {}).get(best, 'not compiled')}"
    return [
        Line(
            WARN,
            "CPU kernels",
            lacking,
            "training is slower than it could be: install ringtrain again with a newer CXX, or without",
        )
    ]


def kernel_cache(context: DoctorContext) -> list[Line]:
    """Check that compiled kernels of CUDA are kept for the next run."""
    home = Path(context.environ.get("HOME") or os.path.expanduser("~"))
    folder = Path(context.environ.get("CUPY_CACHE_DIR") or home / ".cupy/kernel_cache")
    if not _writable(folder):
        return [
            Line(
                WARN,
                "CUDA kernels",
                "are not kept",
                "every run compiles them again: set CUPY_CACHE_DIR to a writable folder",
            )
        ]
    return [Line(OK, "CUDA kernels", f"are kept in {folder}")]


def _writable(folder: Path) -> bool:
    """Whether the folder exists, or can be made, and is writable."""
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
