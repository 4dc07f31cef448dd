"""A copy of a data set's file on a disk of the node's own.

::
    DIR/ringtrain-data-UID/                          the user's alone
        lock                                         one process at a time copies, or removes
        0c5e…-cifar10.h5                             named by where the file is, its size and when it was changed
        0c5e…-cifar10.h5.sha256                      of its bytes, as they were read; written last
        0c5e…-cifar10.h5.ringtrain-partial           what a killed process left; the next one removes it

A copy that is there is used again if its bytes are still those. Whoever uses one holds a lock on it, so that another
run on the node, which is done with it, leaves it where it is.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ringtrain.errors import DataError

AUTO = "auto"
PARTIAL = ".ringtrain-partial"
BLOCK_BYTES = 8 << 20


def folder_of(asked: str, environ: Mapping[str, str]) -> Path:
    """Where copies go: the folder that was asked for, or the node's own as the job's environment names it."""
    if asked != AUTO:
        return Path(asked)
    return Path(environ.get("SLURM_TMPDIR") or environ.get("TMPDIR") or "/tmp")


@contextmanager
def nearby(source: Path, parent: Path, keep: bool) -> Iterator[Path]:
    """A good copy of ``source`` below ``parent``, there as long as this lasts, and after that with ``keep``.

    Raises: DataError, naming this host, where there is no source, no room, or no writing; or the copy differs
    """
    with _told(source, parent):
        folder = _own_folder(parent)
        with _locked(folder):
            copy = _copied(source, folder)
            use = os.open(copy, os.O_RDONLY)
            fcntl.flock(use, fcntl.LOCK_SH)
    try:
        yield copy
    finally:
        os.close(use)
        if not keep:
            with _told(source, parent), _locked(folder):
                _remove_unused(copy)


@contextmanager
def _told(source: Path, parent: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error(parent, f"{error.filename or source}: {error.strerror}") from error


def _error(parent: Path, what: str) -> DataError:
    return DataError(
        f"--stage {parent} on {socket.gethostname()}: {what}; name another folder of the node's, or leave --stage out"
    )


def _own_folder(parent: Path) -> Path:
    """Others may write to the parent: a folder of somebody else's, or a link, is not taken for ours."""
    folder = parent / f"ringtrain-data-{os.getuid()}"
    parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise _error(parent, f"{folder} is there, and is no folder of yours")
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _copied(source: Path, folder: Path) -> Path:
    about = source.stat()
    identity = f"{source.resolve()} {about.st_size} {about.st_mtime_ns}"
    copy = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{source.name}"
    if _is_whole(copy):
        return copy
    for left in folder.glob(f"*{PARTIAL}"):
        left.unlink()
    copy.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if free < about.st_size:
        raise _error(folder.parent, f"{source} has {about.st_size:,} bytes, and {free:,} are free")
    aside = copy.with_name(copy.name + PARTIAL)
    try:
        read = _copy(source, aside)
        if _sha256(aside) != read:
            raise _error(folder.parent, f"the copy of {source} is not what was written: the disk is at fault")
        os.replace(aside, copy)
    finally:
        aside.unlink(missing_ok=True)
    _noted(copy).write_text(read)
    return copy


def _noted(copy: Path) -> Path:
    return copy.with_name(copy.name + ".sha256")


def _is_whole(copy: Path) -> bool:
    noted = _noted(copy)
    return copy.is_file() and noted.is_file() and noted.read_text() == _sha256(copy)


def _copy(source: Path, aside: Path) -> str:
    """The sha256 of what was read."""
    running = hashlib.sha256()
    with open(source, "rb") as old, open(aside, "wb") as new:
        while block := old.read(BLOCK_BYTES):
            running.update(block)
            new.write(block)
    return running.hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_unused(copy: Path) -> None:
    """Another run of this node may use it: then it removes it."""
    try:
        use = os.open(copy, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        copy.unlink()
        _noted(copy).unlink(missing_ok=True)
    finally:
        os.close(use)
