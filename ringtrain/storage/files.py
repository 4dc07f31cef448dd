"""Replacement of a file, whole or not at all; and the folders in which a run writes.

The new content is written aside, in the same folder, flushed to the disk, and renamed over the old: at every
instant the name stands for the old content or for the new. A killed writer leaves a file whose name ends in
``PARTIAL``, which :meth:`Folder.remove_partials` removes.

A run follows no link in its folder, or it would change files of others. So it works there by a :class:`Folder`, and
what it reads or appends to there is opened by :func:`open_nofollow`.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import RingtrainError, UsageError

PARTIAL = ".ringtrain-partial"  # a name of our own: the folder may hold other files
ASIDE = "superseded-"  # prefix of the new name
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISPLACED = (errno.ENOENT, errno.ENOTDIR)
_UNNAMEABLE = (errno.ENAMETOOLONG, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # a file system without fsync of folders returns one of these


def write(path: Path, content) -> None:
    """Replace ``path``, or the file that a link names, by these bytes. On failure its former content stays. A pipe or a
    device, as /dev/stdout may be, is written directly. For files that a user names: those in a run's folder are written
    by :meth:`Folder.write`.

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
        Folder(path.parent).write(path, view)


def check_writable(path) -> None:
    """Check, before hours of work, that a file can be written, and make none of its name. Raises UsageError."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    try:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            from tempfile import TemporaryFile  # 4 ms that commands which only read need not pay

            TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def open_regular(path, flags: int) -> int:
    """Open a regular file and return its descriptor; a pipe would wait for ever, and a device never ends. An ``opener``
    of :func:`open`. Raises OSError."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise OSError(errno.ELOOP, "A link, and none is followed in the folder of a run", str(path)) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    what = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO
    raise OSError(what, os.strerror(what) if what == errno.EISDIR else "Not a regular file", str(path))


def open_nofollow(path, flags: int) -> int:
    """Open a regular file that is no link, as in a run folder. An ``opener`` of :func:`open`. Raises OSError."""
    return open_regular(path, flags | os.O_NOFOLLOW)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder in which a run writes. A file is named by its name, or by its path, which ends in the name; one that is
    a link is replaced itself, and never followed."""

    path: Path  # of the folder; links may lead to it
    above: "Folder | None" = None  # the folder that holds it, if it must not be a link itself

    def check(self) -> None:
        """Raise UsageError if the folder is a link where it must not be one."""
        if self.above is not None and self.path.is_symlink():
            raise UsageError(
                f"{self.path} is a link to {self.path.readlink()}: a run writes in its own folder alone, and follows "
                f"no link there; put a folder in its place, or name another run folder than {self.above.path}"
            )

    def make(self) -> None:
        """Make the folder if it is missing. Raises: OSError; as :meth:`check`."""
        self.check()
        self.path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the names in the folder. Raises: OSError; as :meth:`check`."""
        self.check()
        return os.listdir(self.path)

    def open(self, file, flags: int) -> int:
        """Open a regular file of the folder. An ``opener`` of :func:`open`. Raises: OSError; as :meth:`check`."""
        return open_nofollow(self._within(file), flags)

    def is_plain(self, file) -> bool:
        """Return whether a name belongs to a regular file, and no link, folder or pipe; also true if nothing exists
        there."""
        return _is_plain(self._within(file))

    def write(self, file, content) -> None:
        """Replace a file by these bytes; a link is replaced itself. On failure the former content stays.

        Raises: as the function ``write``; UsageError if the folder is a link.
        """
        with memoryview(content).cast("B") as view:
            self._replace(file, lambda aside: _write(aside, view), view.nbytes)

    def link(self, old, new) -> None:
        """Make ``new`` another name of the file ``old``, or a copy if the file system has no hard links."""
        source = self._within(old)
        self._replace(new, lambda aside: _link(source, aside), source.lstat().st_size)

    def remove(self, file) -> None:
        """Remove a file. Raises: OSError; as :meth:`check`."""
        self._within(file).unlink()

    def remove_partials(self) -> None:
        """Remove the files of killed writers. No other process may write to the folder."""
        for name in self.names():
            if name.endswith(PARTIAL) and not stat.S_ISDIR(_mode(self.path / name)):
                _forget(self.path / name)

    def put_aside(self, file) -> Path:
        """Rename a file out of the way, and return its new path. A file replaces an earlier file of that name; nothing
        else is replaced.

        Raises: as :meth:`write`.
        """
        path, k = self._within(file), 1
        aside = self.path / f"{ASIDE}{path.name}"
        try:
            while _mode(aside) and not (_is_plain(path) and _is_plain(aside)):
                k += 1
                aside = self.path / f"{ASIDE}{k}-{path.name}"
            path.rename(aside)
        except OSError as error:
            raise unwritable(error, aside, 0) from error
        return aside

    def _within(self, file) -> Path:
        self.check()
        return self.path / Path(file).name

    def _replace(self, file, make: Callable[[Path], None], nbytes: int) -> None:
        path = self._within(file)
        aside = self.path / f"{path.name}.{os.getpid()}{PARTIAL}"
        try:
            aside.unlink(missing_ok=True)
            try:
                make(aside)
                _rename(aside, path)
                _sync(self.path)
            finally:
                _forget(aside)
        except OSError as error:
            raise unwritable(error, path, nbytes) from error


def unwritable(error: OSError, path: Path, nbytes: int) -> RingtrainError:
    """Return the error that says why ``nbytes`` bytes could not be written to ``path``."""
    if error.errno in _FORBIDDEN:
        return UsageError(f"{path}: writing is not allowed ({error.strerror}); name another with --out")
    if error.errno in _MISPLACED and path.parent.is_dir():
        return UsageError(f"{path}: {path.parent} takes no new files ({error.strerror}); name another with --out")
    if error.errno in _MISPLACED:
        return UsageError(f"{path}: {path.parent} is missing, or is not a folder; name another with --out")
    if error.errno in _UNNAMEABLE:
        return UsageError(f"{path}: {error.strerror}; name another with --out")
    what = "no room" if error.errno in _FULL else "the disk failed"
    return RingtrainError(
        f"{path}: {what} for {nbytes:,} bytes ({error.strerror}); earlier files are kept: make room, then run it "
        "again; a training goes on from its last checkpoint with --resume auto"
    )


# ── steps of a replacement ────────────────────────────────────────────────────────────────────────────────────────────
def _mode(path: Path) -> int:
    """Return the file type and permissions of a path; 0 if it does not exist."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def _is_plain(path: Path) -> bool:
    mode = _mode(path)
    return mode == 0 or stat.S_ISREG(mode)


def _rename(aside: Path, path: Path) -> None:
    """Rename; NFS may do it, lose its answer, try again, and report that the old name is missing."""
    status = aside.lstat()
    try:
        os.replace(aside, path)
    except FileNotFoundError:
        if not os.path.samestat(path.lstat(), status):
            raise


def _forget(path: Path) -> None:
    with suppress(OSError):  # the first error says more
        path.unlink()


def _sync(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def _write(aside: Path, view: memoryview) -> None:
    # A name of its own ("x"), and unbuffered: a buffer would try to write once more on closing, and fail again.
    with open(aside, "xb", buffering=0) as file:
        done = 0
        while done < view.nbytes:
            done += file.write(view[done:])
        os.fsync(file.fileno())


def _link(old: Path, aside: Path) -> None:
    try:
        os.link(old, aside, follow_symlinks=False)
    except OSError:
        aside.unlink(missing_ok=True)  # NFS may have made it all the same: writing to it would write to ``old``
        with open(old, "rb", opener=open_nofollow) as file:
            _write(aside, memoryview(file.read()))
