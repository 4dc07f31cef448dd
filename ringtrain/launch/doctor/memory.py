"""Checks of memory: enough for each rank, and limits of the system."""

import resource
from pathlib import Path

from ringtrain.bench.measure.memory import available_bytes, kernel_bytes
from ringtrain.launch import texts
from ringtrain.launch.doctor.cgroup import read_limits
from ringtrain.launch.doctor.doctor import OK, WARN, DoctorContext, Line, scarcest_host

MEMINFO = "proc/meminfo"
GIB = 1 << 30
LEAST_BYTES = GIB >> 1  # of a rank: Python and the digits take 100 MiB
LEAST_LOCKED = GIB  # bytes that an InfiniBand adapter pins before it falls back, or fails
FILES_BESIDE = 128  # open files of a rank beside a connection to each other one


def memory(context: DoctorContext) -> list[Line]:
    """Check the free memory for each rank, on the host with least; collective."""
    transport = context.transport
    reported = transport.gather_json([context.host, free_bytes(context.root), transport.local_size])
    found = scarcest_host(reported)
    if found is None:
        return [Line(OK, "memory", "this system does not report free memory")]
    host, free, ranks = found
    share = free / ranks
    where = f" on {host}, which has least" if transport.nodes > 1 else ""
    text = f"{free / GIB:.1f} GiB free{where}, {share / GIB:.1f} a rank"
    if share < LEAST_BYTES:
        return [
            Line(
                WARN,
                "memory",
                text,
                "fewer ranks a node, or more memory: --mem of Slurm, -m of docker; a model needs more than this",
            )
        ]
    return [Line(OK, "memory", text)]


def free_bytes(root: Path) -> int | None:
    """Return the free memory of this machine, or within the limit of a container or job if that is less; None if
    unknown."""
    return _least(available_bytes(root / MEMINFO), read_limits(root).free)


def whole_bytes(root: Path) -> int | None:
    """Return the memory of this machine, or the limit of a container or job if that is less; None if unknown."""
    return _least(kernel_bytes("MemTotal", root / MEMINFO), read_limits(root).nbytes)


def _least(*every: int | None) -> int | None:
    return min((each for each in every if each is not None), default=None)


def locked(context: DoctorContext) -> list[Line]:
    """Check the limit of locked memory, which adapters of InfiniBand need."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    adapters = sorted(each.name for each in (context.root / "sys/class/infiniband").glob("*"))
    text = texts.LIMITLESS if limit == resource.RLIM_INFINITY else f"at most {limit / (1 << 20):,.0f} MiB"
    if adapters and limit != resource.RLIM_INFINITY and limit < LEAST_LOCKED:
        little = f"{text}, and there is {', '.join(adapters)}"
        return [
            Line(
                WARN,
                "locked memory",
                little,
                (
                    "the MPI may fall back to TCP, or fail: ulimit -l unlimited where ranks are started "
                    "(limits.conf; the LimitMEMLOCK of slurmd; --ulimit memlock=-1 of docker)"
                ),
            )
        ]
    return [Line(OK, "locked memory", text)]


def open_files(context: DoctorContext) -> list[Line]:
    """Check that a rank may open a connection to every other."""
    limit, size = resource.getrlimit(resource.RLIMIT_NOFILE)[0], context.transport.size
    if limit != resource.RLIM_INFINITY and limit < size + FILES_BESIDE:
        advice = f"ulimit -n {2 * (size + FILES_BESIDE)} where ranks are started"
        return [Line(WARN, "open files", f"at most {limit:,}, and a rank connects to {size:,} ranks", advice)]
    enough = texts.LIMITLESS if limit == resource.RLIM_INFINITY else f"at most {limit:,}"
    return [Line(OK, "open files", enough)]
