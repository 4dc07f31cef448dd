"""Checks of the place where run folders go: whether a checkpoint can be written there, and how fast.

Rank 0 writes checkpoints, so rank 0 tries; the others look whether they see the same place. What is written goes into
one folder, which is removed again.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringtrain import files
from ringtrain.checkpoint.trial import hdf5_version, try_hdf5
from ringtrain.errors import RingtrainError, naming_packages
from ringtrain.humanize import format_rate, format_seconds
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line, Visit, from_first

GIB = 1 << 30
LITTLE_BYTES = GIB
BLOCK, MOST_BYTES, BUDGET_S = 4 << 20, 64 << 20, 1.0
SLOW_BYTES_PER_S, SLOW_S = 50e6, 0.25
MARK = b"ringtrain doctor"


def existing(path: Path) -> Path:
    """The folder, or the one in which it would be made; or what lies in the way, where that is no folder."""
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))


@contextmanager
def folder_in(place: Path) -> Iterator[Path]:
    """A folder of our own, gone afterwards."""
    own = place / f".ringtrain-doctor-{os.getpid()}"
    own.mkdir()
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


@dataclass(slots=True)
class Found:
    """What rank 0 came upon: ``refused``, or what HDF5 and locks said, empty where they are well."""

    refused: str = ""
    hdf5: str = ""
    locks: str = ""


def run_folder(visit: Visit) -> list[Line]:
    """Collective."""
    place, first = existing(visit.path), visit.transport.rank == 0
    with ExitStack() as stack:
        found, own = _trial(place, stack) if first else (Found(), None)
        blind = _blind(visit, own)
    return from_first(visit, _lines(visit, place, found, blind) if first else [])


def _trial(place: Path, stack: ExitStack) -> tuple[Found, Path | None]:
    """What was found, and the folder of our own if there is one: until the stack is left."""
    try:
        own = stack.enter_context(folder_in(place))
        files.write(own / "mark", MARK)
        with naming_packages():
            return Found("", try_hdf5(own / "trial.h5"), _locks(own / "mark")), own
    except FileNotFoundError:  # /proc and its like answer so
        return Found(f"{place}: its file system makes no folders"), None
    except OSError as error:
        return Found(f"{place}: {error.strerror}"), None
    except RingtrainError as error:
        return Found(str(error)), None


def _locks(file: Path) -> str:
    with open(file, "r+b") as opened:  # NFS locks for one alone only what is open for writing
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.strerror
    return ""


def _blind(visit: Visit, own: Path | None) -> list[str]:
    """The hosts that do not see rank 0's folder; collective."""
    named = visit.transport.gather_json(own and str(own))[0]
    seen = named is None or os.path.isfile(os.path.join(named, "mark"))
    every = visit.transport.gather_json([visit.host, seen])
    return list(dict.fromkeys(host for host, sees in every if not sees))


def _lines(visit: Visit, place: Path, found: Found, blind: list[str]) -> list[Line]:
    if found.refused:
        return [Line(FAIL, "run folder", found.refused, "run where you may write, or name a place by --out")]
    return [_place(visit, place), *([_apart(blind)] if blind else []), _hdf5(found)]


def _place(visit: Visit, place: Path) -> Line:
    free = shutil.disk_usage(place).free
    text = f"{place}: {file_system(visit.root, place)}, {free / GIB:,.1f} GiB free"
    if free < LITTLE_BYTES:
        return Line(WARN, "run folder", text, "a checkpoint may not fit: make room, or name a place by --out")
    return Line(OK, "run folder", text)


def _apart(blind: list[str]) -> Line:
    told = ", ".join(blind[:4]) + (f" and {len(blind) - 4} more" if len(blind) > 4 else "")
    advice = "a run that goes on elsewhere finds no checkpoint: name a place that all nodes share by --out"
    return Line(WARN, "run folder's place", f"is not seen from {told}", advice)


def _hdf5(found: Found) -> Line:
    text = hdf5_version()
    if found.hdf5:
        return Line(FAIL, "HDF5", f"{text}: {found.hdf5}", "no checkpoint can be written there: name a place by --out")
    if found.locks:
        advice = (
            "a second run in one folder is seen on the same host only; for HDF5 files of others: export "
            "HDF5_USE_FILE_LOCKING=FALSE"
        )
        return Line(WARN, "HDF5", f"{text}; files cannot be locked there ({found.locks})", advice)
    return Line(OK, "HDF5", f"{text}: a file was written, locked and read")


def file_system(root: Path, place: Path) -> str:
    """The kind that a folder lies on: "ext4", "lustre", "nfs4"."""
    mounts = root / "proc/self/mountinfo"
    best, kind = -1, "an unknown file system"
    for line in mounts.read_text().splitlines() if mounts.is_file() else []:
        fields, _, after = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if place.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), after.split()[0]
    return kind


# ── measured ──────────────────────────────────────────────────────────────────────────────────────────────────
def disk(visit: Visit) -> list[Line]:
    """How fast rank 0 writes there, down to the disk, reads again, and replaces a small file; collective."""
    return from_first(visit, [] if visit.transport.rank else _measured(existing(visit.path)))


def _measured(place: Path) -> list[Line]:
    try:
        with folder_in(place) as own:
            small_s = _replace_s(own / "small")
            written, nbytes = _write_rate(own / "large")
            read = _read_rate(own / "large")
    except (OSError, RingtrainError):
        return []  # which the run folder's line tells
    text = f"{format_rate(written)} written, {format_rate(read)} read ({nbytes >> 20} MiB); "
    text += f"a small file in {format_seconds(small_s)}"
    if written < SLOW_BYTES_PER_S or small_s > SLOW_S:
        advice = "ranks wait while rank 0 saves: checkpoints less often (--checkpoint-every), or a faster place (--out)"
        return [Line(WARN, "disk", text, advice)]
    return [Line(OK, "disk", text)]


def _replace_s(file: Path) -> float:
    began = time.perf_counter()
    files.write(file, MARK)
    return time.perf_counter() - began


def _write_rate(file: Path) -> tuple[float, int]:
    """(bytes a second, bytes)"""
    block, nbytes = os.urandom(BLOCK), 0
    began = time.perf_counter()
    with open(file, "wb", buffering=0) as opened:
        while nbytes < MOST_BYTES and time.perf_counter() - began < BUDGET_S:
            nbytes += opened.write(block)
            os.fsync(opened.fileno())  # block by block, so that the time is over soon after the budget
    return nbytes / (time.perf_counter() - began), nbytes


def _read_rate(file: Path) -> float:
    with open(file, "rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, if the system lets go of it
        began, nbytes = time.perf_counter(), 0
        while got := len(opened.read(BLOCK)):
            nbytes += got
    return nbytes / (time.perf_counter() - began)
