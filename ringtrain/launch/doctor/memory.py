"""Checks of memory: how much of it a rank has, and what limits of the system stand in its way."""

import resource
from pathlib import Path

from ringtrain.bench.memory import available_bytes, told_bytes
from ringtrain.launch.doctor.cgroup import read_limits
from ringtrain.launch.doctor.doctor import OK, WARN, Line, Visit, scarcest

MEMINFO = "proc/meminfo"
GIB = 1 << 30
LEAST_BYTES = GIB >> 1  # of a rank: Python, compiled kernels and the digits take 200 MiB
LEAST_LOCKED = GIB  # what an adapter of InfiniBand has pinned before it falls back, or fails
FILES_BESIDE = 128  # open files of a rank beside a connection to each other one


def room(visit: Visit) -> list[Line]:
    """What is free for each rank, where that is least; collective."""
    transport = visit.transport
    told = transport.gather_json([visit.host, free_bytes(visit.root), transport.local_size])
    found = scarcest(told)
    if found is None:
        return [Line(OK, "memory", "this system does not tell how much is free")]
    host, free, ranks = found
    share = free / ranks
    where = f" on {host}, which has least" if transport.nodes > 1 else ""
    text = f"{free / GIB:.1f} GiB free{where}, {share / GIB:.1f} a rank"
    if share < LEAST_BYTES:
        advice = "fewer ranks a node, or more memory: --mem of Slurm, -m of docker; training takes what a model needs"
        return [Line(WARN, "memory", text, advice)]
    return [Line(OK, "memory", text)]


def free_bytes(root: Path) -> int | None:
    """Of this machine, or of what a container or job may take of it, where that is less."""
    return _least(available_bytes(root / MEMINFO), read_limits(root).free)


def whole_bytes(root: Path) -> int | None:
    """All memory of this machine, or all that a container or job may have of it; None where nothing tells."""
    return _least(told_bytes("MemTotal", root / MEMINFO), read_limits(root).nbytes)


def _least(*every: int | None) -> int | None:
    return min((each for each in every if each is not None), default=None)


def locked(visit: Visit) -> list[Line]:
    """How much memory may be locked, which adapters of InfiniBand want."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    adapters = sorted(each.name for each in (visit.root / "sys/class/infiniband").glob("*"))
    text = "without limit" if limit == resource.RLIM_INFINITY else f"at most {limit / (1 << 20):,.0f} MiB"
    if adapters and limit != resource.RLIM_INFINITY and limit < LEAST_LOCKED:
        advice = (
            "the MPI may fall back to TCP, or fail: ulimit -l unlimited where ranks are started (limits.conf; the "
            "LimitMEMLOCK of slurmd; --ulimit memlock=-1 of docker)"
        )
        return [Line(WARN, "locked memory", f"{text}, and there is {', '.join(adapters)}", advice)]
    return [Line(OK, "locked memory", text)]


def open_files(visit: Visit) -> list[Line]:
    """Whether a rank may have a connection to each of the others."""
    limit, size = resource.getrlimit(resource.RLIMIT_NOFILE)[0], visit.transport.size
    if limit != resource.RLIM_INFINITY and limit < size + FILES_BESIDE:
        text = f"at most {limit:,}, and there are {size:,} ranks to be connected to"
        return [Line(WARN, "open files", text, f"ulimit -n {2 * (size + FILES_BESIDE)} where ranks are started")]
    return [Line(OK, "open files", "without limit" if limit == resource.RLIM_INFINITY else f"at most {limit:,}")]
