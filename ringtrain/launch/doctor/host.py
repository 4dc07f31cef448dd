"""Checks of versions (packages, the MPI, compiled kernels), of the ranks of each host, and of links between nodes."""

import platform
import shutil
import statistics
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np

import ringtrain
from ringtrain.bench.measure.buffers import Buffers
from ringtrain.bench.measure.links import measure_pairs, sick
from ringtrain.humanize import format_rate, format_seconds, plural
from ringtrain.launch.doctor.doctor import FAIL, DoctorContext, Line, line
from ringtrain.transport.launch_environment import APART

# Packages that every run needs, by the names of their modules; without mpi4py a run has one rank.
NEEDED = ("click", "h5py", "numpy", "rich", "tomli_w")
WANTED_BYTES = 64 << 20  # the default of containers, and too little for most models
MIB = 1 << 20
MOST_HOSTS = 8  # that are named


def python(context: DoctorContext) -> Iterator[Line]:
    """Show the versions of Python and the packages."""
    versions = f"ringtrain {ringtrain.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    missing = [name for name in NEEDED if find_spec(name) is None]
    lacks = f"; not installed: {', '.join(missing)}" if missing else ""
    yield line("python", versions + lacks, f"python -m pip install {' '.join(missing)}" if missing else None, FAIL)


def mpi(context: DoctorContext) -> Iterator[Line]:
    """Show the MPI, or explain its absence."""
    words = context.transport.describe()
    if "no MPI" in words:
        yield line("mpi", words, "for several ranks: pip install 'ringtrain[mpi]', or load the site's MPI")
    else:
        advice = "start with mpirun inside the job; with srun, NodeName of slurm.conf is to be the host name"
        if "thread level multiple" not in words:
            advice = "use an MPI with thread level multiple: without it the guard sees no rank of another node"
        lacks = "thread level multiple" not in words or APART in words
        yield line("mpi", f"{words}, mpi4py {version('mpi4py')}", advice if lacks else None)


def cpu_kernels(context: DoctorContext) -> Iterator[Line]:
    """Show the family and the compiler of the kernels in use; check that they are of the best family."""
    from ringtrain.ops.cpu import compile, library

    _, family = library.open_library()
    built, best = compile.read_built(), library.cpu_families()[0]
    text = f"{family}, compiled by {built.get('families', {}).get(family, 'an unknown compiler')}"
    if family == best:
        yield line("CPU kernels", text)
    elif best in library.compiled_families():
        yield line("CPU kernels", f"{text}; {library.FAMILY_SETTING} asks for them, the CPU has {best}")
    else:
        advice = "training is slower than it could be: install ringtrain again with a newer CXX, or without"
        text += f"; the CPU has {best}, which is not compiled: {built.get('failed', {}).get(best, 'not compiled')}"
        yield line("CPU kernels", text, advice)


def ranks(context: DoctorContext) -> Iterator[Line]:
    """Show the number of ranks on each host; collective."""
    transport = context.transport
    hosts = transport.gather_json(context.host)
    counts = [f"{host} {hosts.count(host)}" for host in dict.fromkeys(hosts)]
    more = f" and {len(counts) - MOST_HOSTS} more" if len(counts) > MOST_HOSTS else ""
    count, nodes = plural(transport.size, "rank"), plural(transport.nodes, "node")
    yield line("ranks", f"{count} on {nodes}: {', '.join(counts[:MOST_HOSTS])}{more}")


def shared_memory(context: DoctorContext) -> Iterator[Line]:
    """Check that the ranks of a node share memory, and that there is enough; collective."""
    folder, transport = context.root / "dev/shm", context.transport
    window = transport.node_window(4096)
    room = shutil.disk_usage(folder).free if folder.is_dir() else None
    free = transport.gather_json(room)[transport.neighbours[0]]  # the same number on all ranks of a node
    words = "" if free is None else f", {free // MIB:,} MiB free in /dev/shm"
    if window is None and transport.local_size > 1:
        advice = "ranks of a node will send messages instead: start them where they see one another's processes"
        yield line("shared memory", f"none between ranks{words}", advice)
    else:
        little = free is not None and free < WANTED_BYTES
        advice = "messages of the MPI lie there: start the container with --shm-size=2g, or free space there"
        yield line("shared memory", f"the ranks of a node share it{words}", advice if little else None)


def links(context: DoctorContext) -> Iterator[Line]:
    """Measure links between nodes, of one rank each, and name the node that stands out; collective."""
    transport = context.transport
    if transport.nodes == 1:
        return
    every = transport.gather_json([context.host, transport.node])
    nodes = [node for _, node in every]
    alike = len({host for host, _ in every}) < transport.nodes
    names = [f"node {node} of {host}" if alike else host for host, node in every]
    firsts = [nodes.index(node) for node in dict.fromkeys(nodes)]
    rows = measure_pairs(Buffers(transport), 0, pairs=in_circle(firsts))
    latency_s, rate = (statistics.median(row[name] for row in rows) for name in ("latency_s", "bytes_per_s"))
    text = f"{format_seconds(latency_s)}, {format_rate(rate)} ({plural(len(rows), 'pair')})"
    slow = "; ".join(sick(rows, names))
    advice = "every step waits for the slowest: leave it out; ringtrain bench-allreduce --pairs maps all"
    yield line("links", f"{text}, but {slow}", advice) if slow else line("links", text)


def in_circle(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of each rank with the next and the next but one: all pairs of up to five ranks."""
    steps = ((ranks[place], ranks[(place + step) % len(ranks)]) for step in (1, 2) for place in range(len(ranks)))
    return list(dict.fromkeys((min(pair), max(pair)) for pair in steps if pair[0] != pair[1]))
