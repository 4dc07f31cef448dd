"""A copy of a data set's file on a disk of the node's own.

::
    DIR/ringtrain-data-UID/                          the user's alone
        lock                                         one process at a time copies, or removes; changed while it copies;
                                                     removed, with the folder, by the one that leaves no copy there
        0c5e…-cifar10.h5                             named by where the file is, its size and when it was changed
        0c5e…-cifar10.h5.sha256                      of its bytes, as they were read; written last
        0c5e…-cifar10.h5.ringtrain-partial           what a killed process left; the next one removes it

A copy that is there is used again if its bytes are still those. Whoever uses one holds a lock on it, so that another
run on the node, which is done with it, leaves it where it is.

A file may take as long as it takes, as long as somebody gets on: whoever copies or checks says so block by block, to
its own run, and by the time of the lock to those that wait for it. They say that they get on only when it does: were it
enough to wait, none would ever tell of a copy that hangs.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ringtrain.data.content import Progress, silent
from ringtrain.errors import DataError
from ringtrain.files import PARTIAL, remove_partials

AUTO = "auto"
BLOCK_BYTES = 8 << 20
POLL_S = 0.1


def folder_of(asked: str, environ: Mapping[str, str]) -> Path:
    """Where copies go: the folder that was asked for, or the node's own as the job's environment names it."""
    if asked != AUTO:
        return Path(asked)
    return Path(environ.get("SLURM_TMPDIR") or environ.get("TMPDIR") or "/tmp")


@contextmanager
def nearby(source: Path, parent: Path, keep: bool, progress: Progress = silent) -> Iterator[Path]:
    """A good copy of ``source`` below ``parent``, there as long as this lasts, and after that with ``keep``.
    Progress is told of each block, and of those of another process that is waited for.

    Raises: DataError, naming this host, where there is no source, no room, or no writing; or the copy differs
    """
    with _told(source, parent), _locked(parent, progress) as (folder, seen_by_all):
        copy = _copied(source, folder, seen_by_all)
        use = os.open(copy, os.O_RDONLY)
        fcntl.flock(use, fcntl.LOCK_SH)
    try:
        yield copy
    finally:
        os.close(use)
        if not keep:
            with _told(source, parent), _locked(parent, progress):
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
    if not parent.is_dir():
        raise _error(parent, "there is no such folder: make it on each node")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise _error(parent, f"{folder} is there, and is no folder of yours")
    return folder


@contextmanager
def _locked(parent: Path, progress: Progress) -> Iterator[tuple[Path, Progress]]:
    """(the folder, the progress to be told of meanwhile, so that those who wait for the lock see it). A folder that
    is left without a copy goes."""
    folder, file = _lock(parent, progress)

    def seen_by_all(*block) -> None:
        os.utime(file)
        progress(*block)

    try:
        yield folder, seen_by_all
    finally:
        _remove_empty(folder)
        os.close(file)


def _lock(parent: Path, progress: Progress) -> tuple[Path, int]:
    """(the folder, its lock, which is taken): another run may have removed both while this one was waiting."""
    while True:
        folder = _own_folder(parent)
        try:
            file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        try:
            _take(file, progress)
            if os.fstat(file).st_nlink:
                return folder, file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _remove_empty(folder: Path) -> None:
    if os.listdir(folder) == ["lock"]:
        (folder / "lock").unlink()
        folder.rmdir()


def _take(file: int, progress: Progress) -> None:
    """Wait for the lock; progress is told each time that whoever holds it has got on."""
    seen = os.fstat(file).st_mtime_ns
    while not _taken(file):
        time.sleep(POLL_S)
        now = os.fstat(file).st_mtime_ns
        if now != seen:
            seen = now
            progress("waiting", 0, 0)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the latter where a file system emulates it
        return False
    return True


def _copied(source: Path, folder: Path, progress: Progress) -> Path:
    about = source.stat()
    identity = f"{source.resolve()} {about.st_size} {about.st_mtime_ns}"
    copy = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}-{source.name}"
    if _is_whole(copy, progress):
        return copy
    remove_partials(folder)
    copy.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if free < about.st_size:
        raise _error(folder.parent, f"{source} has {about.st_size:,} bytes, and {free:,} are free")
    aside = copy.with_name(copy.name + PARTIAL)
    try:
        read = _copy(source, aside, progress)
        if _sha256(aside, progress) != read:
            raise _error(folder.parent, f"the copy of {source} is not what was written: the disk is at fault")
        os.replace(aside, copy)
    finally:
        aside.unlink(missing_ok=True)
    _noted(copy).write_text(read)
    return copy


def _noted(copy: Path) -> Path:
    return copy.with_name(copy.name + ".sha256")


def _is_whole(copy: Path, progress: Progress) -> bool:
    noted = _noted(copy)
    return copy.is_file() and noted.is_file() and noted.read_text() == _sha256(copy, progress)


def _copy(source: Path, aside: Path, progress: Progress) -> str:
    """The sha256 of what was read."""
    running = hashlib.sha256()
    with open(aside, "wb") as new:
        for block in _blocks(source, "copying", progress):
            running.update(block)
            new.write(block)
    return running.hexdigest()


def _sha256(path: Path, progress: Progress) -> str:
    running = hashlib.sha256()
    for block in _blocks(path, "checking", progress):
        running.update(block)
    return running.hexdigest()


def _blocks(path: Path, what: str, progress: Progress) -> Iterator[bytes]:
    """Progress is told of each when it is done with."""
    with open(path, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK_BYTES):
            yield block
            progress(what, file.tell(), total)


def _remove_unused(copy: Path) -> None:
    """Another run of this node may use it: then it removes it. Opened for writing, as NFS wants, whose locks are of
    ranges of bytes. Where there is no such lock to be had, others may use it all the same."""
    try:
        use = os.open(copy, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        copy.unlink()
        _noted(copy).unlink(missing_ok=True)
    finally:
        os.close(use)
