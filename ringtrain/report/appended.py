"""A file that grows by whole pieces, without a buffer: it is complete to the last piece when its writer is killed."""

import errno
import os
from contextlib import suppress

from ringtrain.errors import RingtrainError, UsageError
from ringtrain.storage import files

CLOSED = -1  # in place of a file's number


class AppendedFile:
    """A file of a run folder, opened for appending; no link is followed. ``flags``: further ones of :func:`os.open`,
    such as O_TRUNC.

    Raises: OSError.
    """

    def __init__(self, path: str, flags: int = 0):
        self._file = files.open_nofollow(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags)

    def append(self, piece: bytes) -> str | None:
        """Write all of it, or nothing, as on a full disk. Returns None, or the reason."""
        try:
            before = os.fstat(self._file).st_size
            if os.write(self._file, piece) == len(piece):
                return None
            problem = os.strerror(errno.ENOSPC)  # there was room for a part
        except OSError as error:
            problem = error.strerror or str(error)
        with suppress(OSError):
            os.ftruncate(self._file, before)
        return problem

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file != CLOSED:
            os.close(self._file)
            self._file = CLOSED


def cannot_append(path: str, problem: str) -> str:
    """Return the warning for a run's log that has lost a piece."""
    return f"log {path}: could not be written ({problem}); the run goes on without"


def unwritable(path: str, error: OSError) -> RingtrainError:
    """Return the error for a file that cannot be opened."""
    kind = UsageError if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else RingtrainError
    return kind(
        f"log {path}: could not be written ({error.strerror}); make room or allow writing there, then continue from "
        "the last checkpoint with --resume auto"
    )
