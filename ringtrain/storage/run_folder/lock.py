"""One run at a time in a folder: a lock that ends with its owner.

The kernel keeps it (flock on a file of the folder), so it ends with the last process that has the file open, however
that ended: a killed run leaves none. NFS and Lustre (mounted with flock) carry it to other hosts. On a file system
without locks nothing keeps a second run out, and :attr:`Lock.warning` says so. The file names the owner, for people.
"""

import contextlib
import datetime
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringtrain.errors import UsageError
from ringtrain.storage import files

NAME = ".lock"
PATIENCE_S = 20.0  # wait for the file system to release a lock whose owner is gone
_POLL_S = 0.1
_NONE_HERE = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lock. started: when the process began, in the kernel's count; since: when it took the lock."""

    host: str
    process: int
    started: str
    since: str

    def lives(self) -> bool:
        return self.host == socket.gethostname() and self.started == _started(self.process) != ""


@dataclass(slots=True)
class Lock:
    """A held lock. ``warning``: for the user, where it keeps no other run out."""

    descriptor: int | None
    warning: str = ""

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def take_lock(folder: Path, patience_s: float = PATIENCE_S, sleep: Callable[[float], None] = time.sleep) -> Lock:
    """Take the lock of a folder. Waits while its owner is gone but the lock remains.

    Raises: UsageError if another run has it, naming the owner; RingtrainError, UsageError if the file cannot be
    written.
    """
    tries = round(patience_s / _POLL_S)
    while (lock := _attempt(folder, last=tries <= 0)) is None:
        tries -= 1
        sleep(_POLL_S)
    return lock


def is_held(folder: Path) -> bool:
    """Return whether a run has the lock of a folder. Changes nothing; a lock that cannot be read counts as free."""
    try:
        descriptor = files.open_regular(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return error.errno not in _NONE_HERE
    finally:
        os.close(descriptor)


def _attempt(folder: Path, last: bool) -> Lock | None:
    path = folder / NAME
    descriptor = _opened(path)
    warning = ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NONE_HERE:
            owner = _owner(descriptor)
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise files.unwritable(error, path, 0) from error
            if last or (owner and owner.lives()):
                raise _taken(folder, owner) from None
            return None
        warning = f"{folder} is on a file system without locks: nothing keeps a second run out of it"
    _sign(descriptor)
    return Lock(descriptor, warning)


def _taken(folder: Path, owner: Owner | None) -> UsageError:
    who = f"process {owner.process} on {owner.host}, since {owner.since}" if owner else "another process"
    return UsageError(
        f"run folder {folder} is in use by {who}: only one run at a time can write there. Wait for its end, or end it; "
        "or name another folder with --out"
    )


def _opened(path: Path) -> int:
    folder = files.Folder(path.parent)
    try:
        if not folder.is_plain(path):
            folder.put_aside(path)
        return files.open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise files.unwritable(error, path, 0) from error


def _sign(descriptor: int) -> None:
    now = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
    text = f"{socket.gethostname()} {os.getpid()} {_started(os.getpid())} {now}\n"
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _owner(descriptor: int) -> Owner | None:
    try:
        host, process, started, since = os.pread(descriptor, 1 << 12, 0).decode().strip().split(" ", 3)
        return Owner(host, int(process), started, since)
    except (OSError, ValueError):
        return None


def _started(process: int) -> str:
    """Return when a living process of this host began; "" if it does not exist, or is a zombie. The second word of its
    line may contain blanks and brackets; the third is its state, the 22nd the start time.
    """
    try:
        words = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]
