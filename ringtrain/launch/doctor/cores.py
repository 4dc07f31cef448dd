"""Checks of cores: enough of them, threads of operations, NUMA nodes."""

import os
from collections.abc import Sequence
from pathlib import Path

from ringtrain.bench.header import ranges, why_cores_are_shared
from ringtrain.humanize import plural
from ringtrain.launch.doctor.cgroup import read_limits, read_small_file
from ringtrain.launch.doctor.doctor import OK, WARN, DoctorContext, Line, scarcest_host

MOST_LISTED = 8  # ranks whose cores are listed one by one


def cores(context: DoctorContext) -> list[Line]:
    """Check that there are enough cores for the ranks, and list those of each rank; collective."""
    cpus = sorted(os.sched_getaffinity(0))
    own = {"host": context.host, "cores": cpus, "whole": whole_cores(context.root, cpus)}
    placements = context.transport.gather_json(own)
    text = _cores_text([ranges(placement["cores"]) for placement in placements])
    crowd = why_cores_are_shared(placements)
    if crowd:
        return [
            Line(
                WARN,
                "cores",
                f"{text}: {crowd}",
                "give each rank a core of its own: fewer ranks, or more slots; mpirun --bind-to core",
            )
        ]
    halves = why_cores_are_shared([{"host": each["host"], "cores": each["whole"]} for each in placements])
    if halves:
        return [
            Line(
                WARN,
                "cores",
                f"{text}: {halves}, of two threads each",
                "two threads of a core halve it: mpirun --map-by core, --hint=nomultithread of Slurm",
            )
        ]
    return [Line(OK, "cores", text)]


def _cores_text(every: Sequence[str]) -> str:
    if len(set(every)) == 1:
        return f"{every[0]}, the same of all ranks" if len(every) > 1 else every[0]
    more = [f"… of {len(every)}"] if len(every) > MOST_LISTED else []
    return f"by rank {' | '.join([*every[:MOST_LISTED], *more])}"


def whole_cores(root: Path, cpus: Sequence[int]) -> list[int]:
    """Return the physical cores of these processors, each by the least of its threads."""
    return sorted({min(numbers_of(_siblings(root, cpu))) for cpu in cpus})


def _siblings(root: Path, cpu: int) -> str:
    return read_small_file(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def numbers_of(text: str) -> set[int]:
    """ "0-3,8" → {0, 1, 2, 3, 8}"""
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}


def quota(context: DoctorContext) -> list[Line]:
    """Check the share of the cores' time that a container or a job may use; collective."""
    own = read_limits(context.root).cores
    reported = context.transport.gather_json([context.host, own, context.transport.local_size])
    found = scarcest_host(reported)
    if found is None:
        return []
    host, share, ranks = found
    text = f"{share:g} of time on {host}, for {plural(ranks, 'rank')}"
    if share < ranks:
        return [
            Line(
                WARN,
                "core quota",
                text,
                "the system stops ranks beyond it, and all wait: start as many ranks as cores; --cpus of docker",
            )
        ]
    return [Line(OK, "core quota", text)]


def threads(context: DoctorContext) -> list[Line]:
    """Check that the threads of all ranks have cores; collective."""
    from ringtrain.ops.cpu.library import THREADS_SETTING, threads_wanted

    own = threads_wanted()
    reported = context.transport.gather_json([context.host, sorted(os.sched_getaffinity(0)), own])
    crowd = _crowd(reported)
    if crowd:
        setting = f"{THREADS_SETTING}={context.environ.get(THREADS_SETTING, '')}"
        return [
            Line(
                WARN,
                "threads",
                crowd,
                f"threads wait for one another ({setting}): OMP_NUM_THREADS=cores over ranks, or 1",
            )
        ]
    return [Line(OK, "threads", f"{plural(own, 'thread')} a rank")]


def _crowd(reported: Sequence[tuple[str, list[int], int]]) -> str:
    """Name the host whose ranks have more threads than cores, several each; empty without one. ``reported``
    by rank: host, cores, threads."""
    for host in dict.fromkeys(host for host, _, _ in reported):
        threads = [count for name, _, count in reported if name == host]
        there = {core for name, own, _ in reported if name == host for core in own}
        if sum(threads) > len(there) and max(threads) > 1:
            ranks, cores = plural(len(threads), "rank"), plural(len(there), "core")
            return f"{sum(threads)} threads of {ranks} on {cores} of {host}"
    return ""


def numa(context: DoctorContext) -> list[Line]:
    """Show the NUMA nodes, and the number that this rank runs on."""
    folders = sorted((context.root / "sys/devices/system/node").glob("node[0-9]*"))
    nodes = [numbers_of(read_small_file(folder / "cpulist")) for folder in folders]
    if len(nodes) < 2:
        return [Line(OK, "NUMA", "one node")]
    text = f"{len(nodes)} nodes: {'; '.join(map(ranges, nodes))}"
    own = sum(bool(there & os.sched_getaffinity(0)) for there in nodes)
    if own > 1 and context.transport.local_size > 1:
        several = f"{text}; a rank's cores are on {plural(own, 'node')}"
        return [
            Line(
                WARN,
                "NUMA",
                several,
                "its memory may lie far from its cores: mpirun --map-by numa --bind-to numa, or --cpu-bind of srun",
            )
        ]
    return [Line(OK, "NUMA", text)]
