"""Memory of this machine, or within the limit of this process's control group: of a container, or of a job.

``/proc/self/cgroup`` names the folders, and every folder above counts too, since a container sees its own at the top;
the least limit applies. Both versions of control groups are read.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ringtrain.bench.measure.memory import available_bytes, kernel_bytes

MEMINFO = "proc/meminfo"
MOUNT = "sys/fs/cgroup"
MEMORY = (  # the limit, the usage, and the key of cached files in memory.stat, by version
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
ENDLESS = 1 << 60  # bytes: version 1 writes a number where there is no limit


def read_small_file(file: Path) -> str:
    """Return the content of a small file, stripped; empty if it is missing or unreadable."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def memory_limits(root: Path) -> tuple[int | None, int | None]:
    """Return (the limit in bytes, the rest of it, or of a larger limit that others share); None: no limit."""
    pairs = [pair for folder in _folders(root) if (pair := _memory_limit(folder))]
    limits, free = zip(*pairs, strict=True) if pairs else ((), ())
    return min(limits, default=None), min(free, default=None)


def _folders(root: Path) -> Iterator[Path]:
    """Return the folder of the group that limits memory, and those above it."""
    for line in read_small_file(root / "proc/self/cgroup").splitlines():
        _, controllers, inside = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            mount = root / MOUNT / "memory" if controllers else root / MOUNT
            folder = mount / inside.lstrip("/")
            yield from (folder, *(above for above in folder.parents if above.is_relative_to(mount)))


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
    return _least(available_bytes(root / MEMINFO), memory_limits(root)[1])


def whole_bytes(root: Path) -> int | None:
    """Return the memory of this machine, or the limit of a container or job if that is less; None if unknown."""
    return _least(kernel_bytes("MemTotal", root / MEMINFO), memory_limits(root)[0])


def _least(*every: int | None) -> int | None:
    return min((each for each in every if each is not None), default=None)
