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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
    """Check, before hours of work, that a file can be written. Raises UsageError."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {folder}")
    existed = Path(path).exists()
    try:
        open(path, "a").close()
        if not existed:  # the work makes it
            Path(path).unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def open_regular(path, flags: int, dir_fd: int | None = None) -> int:
    """Open a regular file and return its descriptor; a pipe would wait for ever, and a device never ends. An ``opener``
    of :func:`open`. Raises OSError."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)
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
    """A folder in which a run writes. No link in it is followed, at any moment: each call opens the folder, and works
    from its handle. A file is named by its name, or by its path, which ends in the name."""

    path: Path  # of the folder; links may lead to it
    above: "Folder | None" = None  # the folder that holds it, if it must not be a link either

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a handle of the folder. Raises: OSError; UsageError if it is a link."""
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        if self.above is None:
            return os.open(self.path, _FOLDER)
        with self.above.opened() as at:
            try:
                return os.open(self.path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            except NotADirectoryError:
                if not stat.S_ISLNK(_mode(at, self.path.name)):
                    raise
                target = os.readlink(self.path.name, dir_fd=at)
            raise UsageError(
                f"{self.path} is a link to {target}: a run writes in its own folder alone, and follows no link there; "
                f"put a folder in its place, or name another run folder than {self.above.path}"
            )

    def make(self) -> None:
        """Make the folder if it is missing. Raises: as :meth:`opened`."""
        if self.above is None:
            self.path.mkdir(parents=True, exist_ok=True)
            return
        self.above.make()
        with self.above.opened() as at, suppress(FileExistsError):
            os.mkdir(self.path.name, dir_fd=at)
        with self.opened():
            pass

    def names(self) -> list[str]:
        """Return the names in the folder. Raises: as :meth:`opened`."""
        with self.opened() as at:
            return os.listdir(at)

    def open(self, file, flags: int) -> int:
        """Open a regular file of the folder. An ``opener`` of :func:`open`. Raises: as :meth:`opened`."""
        with self.opened() as at:
            return open_regular(Path(file).name, flags | os.O_NOFOLLOW, dir_fd=at)

    def is_plain(self, file) -> bool:
        """Return whether a name belongs to a regular file, and no link, folder or pipe; also true if nothing exists
        there."""
        with self.opened() as at:
            return _is_plain(at, Path(file).name)

    def write(self, file, content) -> None:
        """Replace a file by these bytes; a link is replaced itself. On failure the former content stays.

        Raises: as the function ``write``; UsageError if the folder is a link.
        """
        with memoryview(content).cast("B") as view:
            self._replace(Path(file).name, lambda at, aside: _write(at, aside, view), view.nbytes)

    def link(self, old, new) -> None:
        """Make ``new`` another name of the file ``old``, or a copy if the file system has no hard links."""
        source = Path(old).name
        with self.opened() as at:
            nbytes = os.stat(source, dir_fd=at, follow_symlinks=False).st_size
        self._replace(Path(new).name, lambda at, aside: _link(at, source, aside), nbytes)

    def remove(self, file) -> None:
        """Remove a file. Raises: as :meth:`opened`."""
        with self.opened() as at:
            os.unlink(Path(file).name, dir_fd=at)

    def remove_partials(self) -> None:
        """Remove the files of killed writers. No other process may write to the folder."""
        with self.opened() as at:
            for name in os.listdir(at):
                if name.endswith(PARTIAL) and not stat.S_ISDIR(_mode(at, name)):
                    _forget(at, name)

    def put_aside(self, file) -> Path:
        """Rename a file out of the way, and return its new path. A file replaces an earlier file of that name; nothing
        else is replaced.

        Raises: as :meth:`write`.
        """
        name, k = Path(file).name, 1
        aside = f"{ASIDE}{name}"
        try:
            with self.opened() as at:
                while _mode(at, aside) and not (_is_plain(at, name) and _is_plain(at, aside)):
                    k += 1
                    aside = f"{ASIDE}{k}-{name}"
                os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            raise unwritable(error, self.path / aside, 0) from error
        return self.path / aside

    def _replace(self, name: str, make: Callable[[int, str], None], nbytes: int) -> None:
        aside = f"{name}.{os.getpid()}{PARTIAL}"
        try:
            with self.opened() as at:
                _unlink(at, aside)
                try:
                    make(at, aside)
                    _rename(at, aside, name)
                    _sync(at)
                finally:
                    _forget(at, aside)
        except OSError as error:
            raise unwritable(error, self.path / name, nbytes) from error


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


# ── names in an open folder ───────────────────────────────────────────────────────────────────────────────────────────
def _mode(at: int, name: str) -> int:
    """Return the file type and permissions of a name in the folder; 0 if the name does not exist."""
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _is_plain(at: int, name: str) -> bool:
    mode = _mode(at, name)
    return mode == 0 or stat.S_ISREG(mode)


def _rename(at: int, aside: str, name: str) -> None:
    """Rename; NFS may do it, lose its answer, try again, and report that the old name is missing."""
    status = os.stat(aside, dir_fd=at, follow_symlinks=False)
    try:
        os.replace(aside, name, src_dir_fd=at, dst_dir_fd=at)
    except FileNotFoundError:
        if not os.path.samestat(os.stat(name, dir_fd=at, follow_symlinks=False), status):
            raise


def _unlink(at: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at)


def _forget(at: int, name: str) -> None:
    with suppress(OSError):  # the first error says more
        _unlink(at, name)


def _sync(at: int) -> None:
    """Flush the names in a folder to the disk, if the file system supports it."""
    try:
        os.fsync(at)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise


def _write(at: int, aside: str, view: memoryview) -> None:
    # A name of its own ("x"), and unbuffered: a buffer would try to write once more on closing, and fail again.
    with open(aside, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o666, dir_fd=at)) as file:
        done = 0
        while done < view.nbytes:
            done += file.write(view[done:])
        os.fsync(file.fileno())


def _link(at: int, old: str, aside: str) -> None:
    try:
        os.link(old, aside, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except OSError:
        _unlink(at, aside)  # NFS may have made it all the same: writing to it would write to ``old``
        flags = os.O_RDONLY | os.O_NOFOLLOW
        with open(old, "rb", opener=lambda name, _: open_regular(name, flags, dir_fd=at)) as file:
            _write(at, aside, memoryview(file.read()))
