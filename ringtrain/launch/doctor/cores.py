"""Checks of cores: enough of them, and not too many threads."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringtrain.bench.header import ranges, why_cores_are_shared
from ringtrain.humanize import plural
from ringtrain.launch.doctor.cgroup import read_small_file
from ringtrain.launch.doctor.doctor import DoctorContext, Line, line

MOST_LISTED = 8  # ranks whose cores are listed one by one


def cores(context: DoctorContext) -> Iterator[Line]:
    """Check that there are enough cores for the ranks, and list each rank's; collective."""
    cpus = sorted(os.sched_getaffinity(0))
    whole = whole_cores(context.root, cpus)
    placements = context.transport.gather_json({"host": context.host, "cores": cpus, "whole": whole})
    text = _cores_text([ranges(each["cores"]) for each in placements])
    if crowd := why_cores_are_shared(placements):
        advice = "give each rank a core of its own: fewer ranks, or more slots; mpirun --bind-to core"
        yield line("cores", f"{text}: {crowd}", advice)
    elif halves := why_cores_are_shared([{"host": each["host"], "cores": each["whole"]} for each in placements]):
        advice = "two threads of a core halve it: mpirun --map-by core, --hint=nomultithread of Slurm"
        yield line("cores", f"{text}: {halves}, of two threads each", advice)
    else:
        yield line("cores", text)


def _cores_text(every: Sequence[str]) -> str:
    if len(set(every)) == 1:
        return f"{every[0]}, the same for all ranks" if len(every) > 1 else every[0]
    more = f" | … of {len(every)}" if len(every) > MOST_LISTED else ""
    return f"by rank {' | '.join(every[:MOST_LISTED])}{more}"


def whole_cores(root: Path, cpus: Sequence[int]) -> list[int]:
    """Return the physical cores of these processors, each by the least of its threads, the first in the list: 2-3,8"""
    files = {cpu: root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus}
    return sorted({int(re.split("[-,]", read_small_file(file) or str(cpu))[0]) for cpu, file in files.items()})


def threads(context: DoctorContext) -> Iterator[Line]:
    """Check that the threads of all ranks of a host have cores, unless each rank has one thread; collective."""
    from ringtrain.ops.cpu.library import THREADS_SETTING, threads_wanted

    wanted = threads_wanted()
    reported = context.transport.gather_json([context.host, sorted(os.sched_getaffinity(0)), wanted])
    for host in dict.fromkeys(host for host, _, _ in reported):
        counts = [count for name, _, count in reported if name == host]
        available = {core for name, cpus, _ in reported if name == host for core in cpus}
        if sum(counts) > len(available) and max(counts) > 1:
            ranks, cores = plural(len(counts), "rank"), plural(len(available), "core")
            setting = f"{THREADS_SETTING}={context.environ.get(THREADS_SETTING, '')}"
            advice = f"threads wait for one another ({setting}): set OMP_NUM_THREADS to cores / ranks, or to 1"
            yield line("threads", f"{sum(counts)} threads of {ranks} on {cores} of {host}", advice)
            return
    yield line("threads", f"{plural(wanted, 'thread')} a rank")
