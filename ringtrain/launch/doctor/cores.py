"""Checks of cores: whether each rank has one, and how matrix products use them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ringtrain.bench.header import crowded, ranges
from ringtrain.humanize import plural
from ringtrain.launch.doctor.cgroup import read_limits
from ringtrain.launch.doctor.doctor import OK, WARN, Line, Visit, scarcest
from ringtrain.launch.doctor.linux import text_of

MOST_TOLD = 8  # ranks whose cores are told one by one
PLAIN_CORES = ("Prescott", "Core2", "Nehalem", "Katmai", "Generic", "generic")  # of OpenBLAS: kernels without AVX


def cores(visit: Visit) -> list[Line]:
    """Which cores each rank may run on, and whether there are enough; collective."""
    own = {"host": visit.host, "cores": sorted(os.sched_getaffinity(0))}
    placements = visit.transport.gather_json(own | {"whole": whole_cores(visit.root, own["cores"])})
    text = _told([ranges(placement["cores"]) for placement in placements])
    crowd = crowded(placements)
    if crowd:
        advice = "give each rank a core of its own: fewer ranks, or more slots; mpirun --bind-to core"
        return [Line(WARN, "cores", f"{text}: {crowd}", advice)]
    halves = crowded([{"host": each["host"], "cores": each["whole"]} for each in placements])
    if halves:
        advice = "two threads of a core have half of it each: mpirun --map-by core, --hint=nomultithread of Slurm"
        return [Line(WARN, "cores", f"{text}: {halves}, of two threads each", advice)]
    return [Line(OK, "cores", text)]


def _told(every: Sequence[str]) -> str:
    if len(set(every)) == 1:
        return f"{every[0]}, the same of all ranks" if len(every) > 1 else every[0]
    return "by rank " + " | ".join(every[:MOST_TOLD]) + (f" | … of {len(every)}" if len(every) > MOST_TOLD else "")


def whole_cores(root: Path, cpus: Sequence[int]) -> list[int]:
    """The cores to which these belong, each by the least of its threads."""
    return sorted({min(numbers_of(_siblings(root, cpu))) for cpu in cpus})


def _siblings(root: Path, cpu: int) -> str:
    return text_of(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)


def numbers_of(text: str) -> set[int]:
    """ "0-3,8" → {0, 1, 2, 3, 8}"""
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}


def quota(visit: Visit) -> list[Line]:
    """What a container or a job gives of the cores' time, where that is less than the cores; collective."""
    own = read_limits(visit.root).cores
    told = visit.transport.gather_json([visit.host, own, visit.transport.local_size])
    found = scarcest(told)
    if found is None:
        return []
    host, share, ranks = found
    text = f"{share:g} of time on {host}, for {plural(ranks, 'rank')}"
    if share < ranks:
        advice = "ranks are stopped when it is used up, and all wait: as many ranks as cores; --cpus of docker"
        return [Line(WARN, "core quota", text, advice)]
    return [Line(OK, "core quota", text)]


def blas(visit: Visit) -> list[Line]:
    """The library of matrix products, the core whose kernels it chose, and its threads on all ranks; collective."""
    from ringtrain.ops.cpu.blas import THREAD_SETTINGS, describe

    found = describe()
    told = visit.transport.gather_json([visit.host, sorted(os.sched_getaffinity(0)), found.threads])
    text = f"{found.version} ({found.core}), {plural(found.threads, 'thread')}"
    setting = next((f"{name}={visit.environ[name]}" for name in THREAD_SETTINGS if name in visit.environ), "")
    crowd = _crowd(told)
    if crowd:
        advice = f"products wait for one another ({setting or 'no setting'}): OMP_NUM_THREADS=cores over ranks, or 1"
        return [Line(WARN, "BLAS", f"{text}: {crowd}", advice)]
    if found.core in PLAIN_CORES and "avx2" in _flags(visit.root):
        forced = visit.environ.get("OPENBLAS_CORETYPE")
        advice = "unset OPENBLAS_CORETYPE" if forced else "a newer scipy-openblas32, or OPENBLAS_CORETYPE=Haswell"
        return [Line(WARN, "BLAS", f"{text}: kernels of an older processor than this, which has AVX2", advice)]
    return [Line(OK, "BLAS", text)]


def _crowd(told: Sequence[tuple[str, list[int], int]]) -> str:
    """Where several threads a rank are more than the cores. ``told`` by rank: host, cores, threads."""
    for host in dict.fromkeys(host for host, _, _ in told):
        threads = [count for name, _, count in told if name == host]
        there = {core for name, own, _ in told if name == host for core in own}
        if sum(threads) > len(there) and max(threads) > 1:
            return f"{sum(threads)} threads of {plural(len(threads), 'rank')} on {plural(len(there), 'core')} of {host}"
    return ""


def _flags(root: Path) -> list[str]:
    """Of the processor."""
    found = re.search(r"^flags\s*:(.*)$", text_of(root / "proc/cpuinfo"), re.M)
    return found[1].split() if found else []
