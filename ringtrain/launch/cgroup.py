"""What the control group of this process (of a container, of a job) lets it have of cores and memory.

The folders are looked for where ``/proc/self/cgroup`` names them and, as a container sees its own at the top, in every
folder above; the least limit of them counts. Both versions of control groups are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT = "sys/fs/cgroup"
ENDLESS = 1 << 60  # bytes: version 1 writes a number where there is no limit


@dataclass(frozen=True, slots=True)
class Limits:
    """None where there is no such limit. ``cores``: a share of time, so that it may be no whole number; ``used``: bytes
    of the group that has the memory limit."""

    cores: float | None = None
    nbytes: int | None = None
    used: int = 0


def read_limits(root: Path) -> Limits:
    cores = [found for folder in _folders(root, "cpu") if (found := _cores(folder))]
    held = [found for folder in _folders(root, "memory") if (found := _held(folder))]
    nbytes, used = min(held, default=(None, 0), key=lambda one: one[0])
    return Limits(min(cores, default=None), nbytes, used)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Of the group that has this controller, and those above it."""
    file = root / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.is_file() else []:
        _, controllers, inside = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            mount = root / MOUNT / controller if controllers else root / MOUNT
            folder = mount / inside.lstrip("/")
            yield from (folder, *(above for above in folder.parents if above.is_relative_to(mount)))


def _cores(folder: Path) -> float | None:
    quota, period = (_text(folder / "cpu.max") or "max 0").split()
    if quota == "max":
        quota, period = (_text(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period"))
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


def _held(folder: Path) -> tuple[int, int] | None:
    """(limit, bytes in use)"""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        text = _text(folder / limit)
        if text and text.isdigit() and int(text) < ENDLESS:
            return int(text), int(_text(folder / used) or 0)
    return None


def _text(file: Path) -> str:
    """What a file of one line says; empty where there is none to be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
