"""Replacement of a file, whole or not at all.

The new content is written aside, in the same folder, flushed to the disk, and renamed over the old: at every
instant the name stands for the old content or for the new. A killed writer leaves a file whose name ends in
``PARTIAL``, which :func:`remove_partials` removes.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.storage import texts

PARTIAL = ".ringtrain-partial"  # a name of our own: the folder may hold other files
ASIDE = "superseded-"  # prefix of the new name
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISPLACED = (errno.ENOENT, errno.ENOTDIR)
_UNNAMEABLE = (errno.ENAMETOOLONG, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # a file system without fsync of folders returns one of these


def write(path: Path, content) -> None:
    """Replace ``path``, or the file that a link names, by these bytes. On failure its former content stays. A pipe or a
    device, as /dev/stdout may be, is written directly.

    Raises: UsageError if writing is not permitted or the folder is missing; RingtrainError if the disk
    is full or fails. Both name the file and the number of bytes.
    """
    with memoryview(content).cast("B") as view:
        try:
            if path.exists() and not path.is_file():
                path.write_bytes(view)
                return
            path = Path(os.path.realpath(path)) if path.is_symlink() else path
        except OSError as error:
            raise unwritable(error, path, view.nbytes) from error
        _replace(path, lambda aside: _write(aside, view), view.nbytes)


def link(old: Path, new: Path) -> None:
    """Make ``new`` another name of the file ``old``, or a copy if the file system has no hard links."""
    _replace(new, lambda aside: _link(old, aside), old.stat().st_size)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def remove_partials(folder: Path) -> None:
    """Remove the files of killed writers. No other process may write to the folder."""
    for left in folder.glob(f"*{PARTIAL}"):
        if not _is_folder(left):
            left.unlink(missing_ok=True)


def open_regular(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file and return its descriptor; a pipe would wait for ever, and a device never ends. Raises
    OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    what = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO
    raise OSError(what, os.strerror(what) if what == errno.EISDIR else texts.NO_REGULAR_FILE, str(path))


def is_plain(path: Path) -> bool:
    """Return whether the path is a regular file with one name, and no link, folder or pipe; also true if nothing exists
    there."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def put_aside(path: Path) -> Path:
    """Rename a file out of the way, and return its new path. A file replaces an earlier file of that name; nothing else
    is replaced.

    Raises: as :func:`write`.
    """
    aside, k = path.with_name(f"{ASIDE}{path.name}"), 1
    while os.path.lexists(aside) and not (is_plain(path) and is_plain(aside)):
        k += 1
        aside = path.with_name(f"{ASIDE}{k}-{path.name}")
    try:
        path.rename(aside)
    except OSError as error:
        raise unwritable(error, aside, 0) from error
    return aside


def unwritable(error: OSError, path: Path, nbytes: int) -> RingtrainError:
    """Return the error that says why ``nbytes`` bytes could not be written to ``path``."""
    if error.errno in _FORBIDDEN:
        return UsageError(texts.WRITING_REFUSED(path=path, reason=error.strerror))
    if error.errno in _MISPLACED and path.parent.is_dir():
        return UsageError(texts.NO_NEW_FILES(path=path, folder=path.parent, reason=error.strerror))
    if error.errno in _MISPLACED:
        return UsageError(texts.NO_FOLDER(path=path, folder=path.parent))
    if error.errno in _UNNAMEABLE:
        return UsageError(texts.NAME_REFUSED(path=path, reason=error.strerror))
    what = texts.NO_ROOM if error.errno in _FULL else texts.DISK_FAILED
    return RingtrainError(texts.NOT_WRITTEN(path=path, problem=what, nbytes=nbytes, reason=error.strerror))


def _replace(path: Path, make: Callable[[Path], None], nbytes: int) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        aside.unlink(missing_ok=True)
        make(aside)
        _rename(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(error, path, nbytes) from error
    finally:
        _forget(aside)


def _rename(aside: Path, path: Path) -> None:
    """Rename; NFS may do it, lose its answer, try again, and report that the old name is missing."""
    made = aside.stat()
    try:
        os.replace(aside, path)
    except FileNotFoundError:
        if not (path.exists() and os.path.samestat(path.stat(), made)):
            raise


def _forget(aside: Path) -> None:
    try:
        aside.unlink(missing_ok=True)
    except OSError:
        return  # the first error says more


def _write(aside: Path, view: memoryview) -> None:
    # A name of its own ("x"), and unbuffered: a buffer would try to write once more on closing, and fail again.
    with open(aside, "xb", buffering=0) as file:
        done = 0
        while done < view.nbytes:
            done += file.write(view[done:])
        os.fsync(file.fileno())


def _link(old: Path, aside: Path) -> None:
    try:
        os.link(old, aside)
    except OSError:
        aside.unlink(missing_ok=True)  # NFS may have made it all the same: writing to it would write to ``old``
        _write(aside, memoryview(old.read_bytes()))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
