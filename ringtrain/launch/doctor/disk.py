"""Checks of the place of run folders: it is writable, visible on all nodes, and fast enough.

Rank 0 writes checkpoints, so rank 0 runs them. All files go into one folder, which is removed again.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ringtrain.errors import RingtrainError
from ringtrain.humanize import format_rate, format_seconds
from ringtrain.launch.doctor.doctor import FAIL, DoctorContext, Line, from_first, line
from ringtrain.storage import files

GIB = 1 << 30
BLOCK, MOST_BYTES, BUDGET_S = 4 << 20, 64 << 20, 1.0
SLOW_BYTES_PER_S, SLOW_S = 50e6, 0.25
MARK = b"ringtrain doctor"


def existing(path: Path) -> Path:
    """Return the folder; if it is missing, its nearest existing parent, which may be a file."""
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


@contextmanager
def folder_in(path: Path) -> Iterator[Path]:
    """Make a temporary folder, and remove it afterwards."""
    folder = path / f".ringtrain-doctor-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_folder(context: DoctorContext) -> list[Line]:
    """Check that rank 0 can write there, and that all nodes see it; collective."""
    path, first = existing(context.path), context.transport.rank == 0
    with ExitStack() as stack:
        refused, folder = _trial(path, stack) if first else ("", None)
        blind = _blind(context, folder)
    return from_first(context, _lines(path, refused, blind) if first else [])


def _trial(path: Path, stack: ExitStack) -> tuple[str, Path | None]:
    """Try to write there. Return the reason of a failure, or empty, and a temporary folder that lasts until the stack
    closes."""
    try:
        folder = stack.enter_context(folder_in(path))
        files.write(folder / "mark", MARK)
        return "", folder
    except FileNotFoundError:  # /proc and its like answer so
        return f"{path}: its file system makes no folders", None
    except OSError as error:
        return f"{path}: {error.strerror}", None
    except RingtrainError as error:
        return str(error), None


def _blind(context: DoctorContext, folder: Path | None) -> list[str]:
    """Return the hosts that do not see rank 0's folder; collective."""
    named = context.transport.gather_json(folder and str(folder))[0]
    seen = named is None or os.path.isfile(os.path.join(named, "mark"))
    every = context.transport.gather_json([context.host, seen])
    return list(dict.fromkeys(host for host, sees in every if not sees))


def _lines(path: Path, refused: str, blind: list[str]) -> list[Line]:
    if refused:
        return [line("run folder", refused, "run where you may write, or name a place by --out", FAIL)]
    free = shutil.disk_usage(path).free
    lines = [
        line(
            "run folder",
            f"{path}: {free / GIB:,.1f} GiB free",
            "a checkpoint may not fit: make room, or name a place by --out" if free < GIB else None,
        )
    ]
    if blind:
        hosts = ", ".join(blind[:4]) + (f" and {len(blind) - 4} more" if len(blind) > 4 else "")
        lines.append(
            line(
                "run folder's place",
                f"is not seen from {hosts}",
                "a run that goes on elsewhere finds no checkpoint: name a place that all nodes share by --out",
            )
        )
    return lines


# ── measured ──────────────────────────────────────────────────────────────────────────────────────────────────
def disk(context: DoctorContext) -> list[Line]:
    """Time rank 0 as it writes to the disk, and replaces a small file; collective."""
    return from_first(context, [] if context.transport.rank else _measured(existing(context.path)))


def _measured(path: Path) -> list[Line]:
    try:
        with folder_in(path) as folder:
            began = time.perf_counter()
            files.write(folder / "small", MARK)
            small_s = time.perf_counter() - began
            written, nbytes = _write_rate(folder / "large")
    except (OSError, RingtrainError):
        return []  # the run folder's line gives the reason
    text = f"{format_rate(written)} written ({nbytes >> 20} MiB); a small file in {format_seconds(small_s)}"
    slow = written < SLOW_BYTES_PER_S or small_s > SLOW_S
    return [
        line(
            "disk",
            text,
            (
                "ranks wait while rank 0 saves: save checkpoints less often (--checkpoint-every), or in a faster "
                "place (--out)"
            )
            if slow
            else None,
        )
    ]


def _write_rate(file: Path) -> tuple[float, int]:
    """Return (bytes a second, bytes)."""
    block, nbytes = os.urandom(BLOCK), 0
    began = time.perf_counter()
    with open(file, "wb", buffering=0) as opened:
        while nbytes < MOST_BYTES and time.perf_counter() - began < BUDGET_S:
            nbytes += opened.write(block)
            os.fsync(opened.fileno())  # block by block, to stop soon after the budget
    return nbytes / (time.perf_counter() - began), nbytes
