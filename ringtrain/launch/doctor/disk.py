"""Checks of the place of run folders: it is writable, visible on all nodes, and fast enough.

Rank 0 writes checkpoints, so rank 0 runs them. All files go into one folder, which is removed again.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

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
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.lexists(parent))


def folder_in(path: Path) -> TemporaryDirectory:
    return TemporaryDirectory(dir=path, prefix=".ringtrain-doctor-", ignore_cleanup_errors=True)


def run_folder(context: DoctorContext) -> list[Line]:
    """Check that rank 0 can write there, and that all nodes see it; collective."""
    path, first = existing(context.path), context.transport.rank == 0
    with ExitStack() as stack:
        refused, mark = _trial(path, stack) if first else ("", None)
        mark = context.transport.gather_json(mark)[0]
        every = context.transport.gather_json([context.host, mark is None or os.path.isfile(mark)])
    blind = list(dict.fromkeys(host for host, sees in every if not sees))
    return from_first(context, _lines(path, refused, blind) if first else ())


def _trial(path: Path, stack: ExitStack) -> tuple[str, str | None]:
    """Try to write there. Return the reason of a failure, or empty, and a file that lasts until the stack closes."""
    try:
        mark = os.path.join(stack.enter_context(folder_in(path)), "mark")
        files.write(Path(mark), MARK)
        return "", mark
    except FileNotFoundError:  # /proc and its like answer so
        return f"{path}: its file system makes no folders", None
    except OSError as error:
        return f"{path}: {error.strerror}", None
    except RingtrainError as error:
        return str(error), None


def _lines(path: Path, refused: str, blind: list[str]) -> Iterator[Line]:
    if refused:
        yield line("run folder", refused, "run where you may write, or name a place by --out", FAIL)
        return
    free, advice = shutil.disk_usage(path).free, "a checkpoint may not fit: make room, or name a place by --out"
    yield line("run folder", f"{path}: {free / GIB:,.1f} GiB free", advice if free < GIB else None)
    if blind:
        hosts = ", ".join(blind[:4]) + (f" and {len(blind) - 4} more" if len(blind) > 4 else "")
        advice = "a run that goes on elsewhere finds no checkpoint: name a place that all nodes share by --out"
        yield line("run folder's place", f"is not seen from {hosts}", advice)


# ── measured ──────────────────────────────────────────────────────────────────────────────────────────────────
def disk(context: DoctorContext) -> list[Line]:
    """Time rank 0 as it writes to the disk, and replaces a small file; collective."""
    return from_first(context, () if context.transport.rank else _measured(existing(context.path)))


def _measured(path: Path) -> Iterator[Line]:
    try:
        with folder_in(path) as folder:
            began = time.perf_counter()
            files.write(Path(folder, "small"), MARK)
            small_s = time.perf_counter() - began
            written, nbytes = _write_rate(Path(folder, "large"))
    except (OSError, RingtrainError):
        return  # the run folder's line gives the reason
    text = f"{format_rate(written)} written ({nbytes >> 20} MiB); a small file in {format_seconds(small_s)}"
    advice = "ranks wait while rank 0 saves: save less often (--checkpoint-every), or in a faster place (--out)"
    yield line("disk", text, advice if written < SLOW_BYTES_PER_S or small_s > SLOW_S else None)


def _write_rate(file: Path) -> tuple[float, int]:
    """Return (bytes a second, bytes)."""
    block, nbytes = os.urandom(BLOCK), 0
    began = time.perf_counter()
    with open(file, "wb", buffering=0) as opened:
        while nbytes < MOST_BYTES and time.perf_counter() - began < BUDGET_S:
            nbytes += opened.write(block)
            os.fsync(opened.fileno())  # block by block, to stop soon after the budget
    return nbytes / (time.perf_counter() - began), nbytes
