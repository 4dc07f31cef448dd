"""Cores and memory of this machine, or within the limits of this process's control group: of a container, or of a job.

``/proc/self/cgroup`` names the folders, and every folder above counts too, since a container sees its own at the top;
the least limit applies. Both versions of control groups are read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringtrain.bench.measure.memory import available_bytes, kernel_bytes

MEMINFO = "proc/meminfo"
MOUNT = "sys/fs/cgroup"
MEMORY = (  # the limit, the usage, and the key of cached files in memory.stat, by version
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
ENDLESS = 1 << 60  # bytes: version 1 writes a number where there is no limit


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits; None means no limit. ``cores``: a share of time, so it may be no whole number; ``nbytes``: of memory in
    all; ``free``: the rest of it, or of a larger limit shared with others.
    """

    cores: float | None = None
    nbytes: int | None = None
    free: int | None = None


def read_small_file(file: Path) -> str:
    """Return the content of a small file, stripped; empty if it is missing or unreadable."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def read_limits(root: Path) -> Limits:
    cores = [share for folder in _folders(root, "cpu") if (share := _cores(folder))]
    memory = [pair for folder in _folders(root, "memory") if (pair := _memory_limit(folder))]
    limits, free = zip(*memory, strict=True) if memory else ((), ())
    return Limits(min(cores, default=None), min(limits, default=None), min(free, default=None))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Return the folder of the group that has this controller, and those above it."""
    for line in read_small_file(root / "proc/self/cgroup").splitlines():
        _, controllers, inside = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = root / MOUNT / controller if controllers else root / MOUNT
            folder = mount / inside.lstrip("/")
            yield from (folder, *(above for above in folder.parents if above.is_relative_to(mount)))


def _cores(folder: Path) -> float | None:
    quota, period = (read_small_file(folder / "cpu.max") or "max 0").split()
    if quota == "max":
        quota, period = (read_small_file(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period"))
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


def _memory_limit(folder: Path) -> tuple[int, int] | None:
    """Return (limit, free bytes). Cached pages of files count as used, but the kernel reclaims them on demand."""
    for limit, used, cached in MEMORY:
        text = read_small_file(folder / limit)
        if text.isdigit() and int(text) < ENDLESS:
            reclaimable = re.search(rf"^{cached} (\d+)$", read_small_file(folder / "memory.stat"), re.M)
            taken = int(read_small_file(folder / used) or 0) - (int(reclaimable[1]) if reclaimable else 0)
            return int(text), max(0, int(text) - max(0, taken))
    return None


def free_bytes(root: Path) -> int | None:
    """Return the free memory of this machine, or within the limit of a container or job if that is less; None if
    unknown."""
    return _least(available_bytes(root / MEMINFO), read_limits(root).free)


def whole_bytes(root: Path) -> int | None:
    """Return the memory of this machine, or the limit of a container or job if that is less; None if unknown."""
    return _least(kernel_bytes("MemTotal", root / MEMINFO), read_limits(root).nbytes)


def _least(*every: int | None) -> int | None:
    return min((each for each in every if each is not None), default=None)
