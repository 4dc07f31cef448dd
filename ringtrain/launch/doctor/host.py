"""Checks of versions (packages, the MPI, compiled kernels), of the ranks of each host, and of links between nodes."""

import platform
import shutil
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

import ringtrain
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.links import measure_pairs, sick
from ringtrain.humanize import format_rate, format_seconds, plural
from ringtrain.launch.doctor.doctor import FAIL, DoctorContext, Line, line

# Packages that every run needs, by the names of their modules; without mpi4py a run has one rank.
NEEDED = ("click", "h5py", "numpy", "rich", "tomli_w")
WANTED_BYTES = 64 << 20  # the default of containers, and too little for most models
MIB = 1 << 20
MOST_HOSTS = 8  # that are named


def python(context: DoctorContext) -> list[Line]:
    """Show the versions of Python and the packages."""
    versions = f"ringtrain {ringtrain.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        lacks = f"{versions}; not installed: {', '.join(missing)}"
        return [line("python", lacks, f"python -m pip install {' '.join(missing)}", FAIL)]
    return [line("python", versions)]


def mpi(context: DoctorContext) -> list[Line]:
    """Show the MPI, or explain its absence."""
    words = context.transport.describe()
    if "no MPI" in words:
        return [line("mpi", words, "for several ranks: pip install 'ringtrain[mpi]', or load the site's MPI")]
    advice = (
        None
        if "thread level multiple" in words
        else "use an MPI with thread level multiple: without it the guard sees no rank of another node"
    )
    return [line("mpi", f"{words}, mpi4py {version('mpi4py')}", advice)]


def cpu_kernels(context: DoctorContext) -> list[Line]:
    """Show the family and the compiler of the kernels in use; check that they are of the best family."""
    from ringtrain.ops.cpu import compile, library

    _, family = library.open_library()
    built, best = compile.read_built(), library.cpu_families()[0]
    text = f"{family}, compiled by {built.get('compiler', 'an unknown compiler')}"
    if family == best:
        return [line("CPU kernels", text)]
    if best in library.compiled_families():
        chosen = f"{text}; {library.FAMILY_SETTING} asks for them, the CPU has {best}"
        return [line("CPU kernels", chosen)]
    why = built.get("failed", {}).get(best, "not compiled")
    return [
        line(
            "CPU kernels",
            f"{text}; the CPU has {best}, which is not compiled: {why}",
            "training is slower than it could be: install ringtrain again with a newer CXX, or without",
        )
    ]


def ranks(context: DoctorContext) -> list[Line]:
    """Show the number of ranks on each host; collective."""
    transport = context.transport
    hosts = transport.gather_json(context.host)
    names = list(dict.fromkeys(hosts))
    counts = ", ".join(f"{host} {hosts.count(host)}" for host in names[:MOST_HOSTS])
    more = f" and {len(names) - MOST_HOSTS} more" if len(names) > MOST_HOSTS else ""
    count, nodes = plural(transport.size, "rank"), plural(transport.nodes, "node")
    return [line("ranks", f"{count} on {nodes}: {counts}{more}")]


def shared_memory(context: DoctorContext) -> list[Line]:
    """Check that the ranks of a node share memory, and that there is enough; collective."""
    folder, transport = context.root / "dev/shm", context.transport
    window = transport.node_window(4096)
    room = shutil.disk_usage(folder).free if folder.is_dir() else None
    free = transport.gather_json(room)[transport.neighbours[0]]  # the same number on all ranks of a node
    words = "" if free is None else f", {free // MIB:,} MiB free in /dev/shm"
    if window is None and transport.local_size > 1:
        return [
            line(
                "shared memory",
                f"none between ranks{words}",
                "ranks of a node will send messages instead: use an MPI with shared windows, and give /dev/shm room",
            )
        ]
    little = free is not None and free < WANTED_BYTES
    return [
        line(
            "shared memory",
            f"the ranks of a node share it{words}",
            "gradients lie there: start the container with --shm-size=2g, or free space there" if little else None,
        )
    ]


def links(context: DoctorContext) -> list[Line]:
    """Measure links between nodes, of one rank each, and name the node that stands out; collective."""
    transport = context.transport
    if transport.nodes == 1:
        return []
    every = transport.gather_json([context.host, transport.node])
    nodes = [node for _, node in every]
    alike = len({host for host, _ in every}) < transport.nodes
    names = [f"node {node} of {host}" if alike else host for host, node in every]
    pairs = in_circle([nodes.index(node) for node in dict.fromkeys(nodes)])
    rows = measure_pairs(Buffers(transport), 0, pairs=pairs)
    latency = format_seconds(statistics.median(row["latency_s"] for row in rows))
    rate = format_rate(statistics.median(row["bytes_per_s"] for row in rows))
    text = f"{latency}, {rate} ({plural(len(rows), 'pair')})"
    slow = "; ".join(sick(rows, names))
    return [
        line(
            "links",
            f"{text}, but {slow}",
            "every step waits for the slowest: leave it out; ringtrain bench-allreduce --pairs maps all",
        )
        if slow
        else line("links", text)
    ]


def in_circle(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of each rank with the next and the next but one: all pairs of up to five ranks."""
    count = len(ranks)
    steps = [(place, (place + step) % count) for step in (1, 2) for place in range(count)]
    return list(dict.fromkeys((ranks[min(both)], ranks[max(both)]) for both in steps if both[0] != both[1]))
