"""Every error that ringtrain raises for a known reason, and the exit code of a run that it ends.

    RingtrainError                     1   failed
    ├── UsageError                     2   a flag, a file or a model that cannot be used as given
    │   ├── ConfigError                    run file or flags
    │   ├── ModelError                     model file, layers, shapes
    │   ├── DataError                      data set: missing, truncated, wrong shapes, labels
    │   ├── CheckpointError                checkpoint: missing, damaged, of another model
    │   └── DeviceError                    no GPU, or not one that can be used so
    │       └── DeviceFullError            its memory does not suffice
    ├── DivergedError                  3   the loss, a weight or the optimizer's state is not finite
    ├── ReplicaError                   3   ranks hold different weights where all must hold the same
    ├── StalledError                   4   a rank made no progress before its deadline
    ├── TransportError                 1   bytes could not be moved
    │   ├── MismatchError                  ranks made different calls where all must make the same
    │   └── RankLostError                  another rank has died, where the MPI tells of that
    ├── ScheduleError                  1   a schedule that does not reach its goal
    ├── OutputError                    1   standard output cannot be written
    │   └── OutputClosed             141       its reader went away: nothing is printed
    ├── Interrupted                   75   stopped by a signal or its job's end: to be requeued
    └── HungUp                       129   its terminal was closed (SIGHUP)

A message names the thing, its value, the wanted value and a remedy. The user sees these errors without a traceback;
any other error is a defect of ringtrain and keeps its traceback. A message may quote any text, so every message is
made plain (:func:`plain`).
"""

import difflib
import errno
from contextlib import contextmanager

from ringtrain.template import LINES, Lines, escaped

NO_PACKAGE = (
    "the Python package {package} is not installed, and this needs it: python -m pip install {package}; "
    "`ringtrain doctor` names all that are missing"
)
NEAREST = "did you mean {name!r}? "

LONGEST = 8000  # characters of a message
LONGEST_NAME = 200
NO_PATHS = (errno.ENAMETOOLONG, errno.EACCES)  # of these even `exists` raises
CLOSE = 0.55  # of difflib's ratio: "mean" is near "min", and "Attention" is not near "Flatten"


class RingtrainError(Exception):
    """The base of all errors. ``everywhere`` is set on an error that every rank raises together: only rank 0 then
    prints it.
    """

    exit_code = 1
    everywhere = False

    def __init__(self, message: str = ""):
        super().__init__(plain(message, LINES if isinstance(message, Lines) else ""))


class UsageError(RingtrainError):
    exit_code = 2


class ConfigError(UsageError):
    """The run file or the flags are wrong."""


class ModelError(UsageError):
    """The model file, its layers or shapes are wrong."""


class DataError(UsageError):
    """The data set is missing, truncated, or of wrong shapes or labels."""


class CheckpointError(UsageError):
    """The checkpoint is missing, damaged, or of another model."""


class DeviceError(UsageError):
    """There is no usable GPU."""


class DeviceFullError(DeviceError):
    """The device's memory does not suffice."""


class DivergedError(RingtrainError):
    exit_code = 3


class ReplicaError(RingtrainError):
    exit_code = 3


class StalledError(RingtrainError):
    """A rank made no progress before its deadline. ``awaited``: the awaited peers and messages, if known. ``whole``:
    whether the message describes all ranks.
    """

    exit_code = 4
    awaited = ""
    whole = False


class TransportError(RingtrainError):
    """Bytes could not be moved."""


class MismatchError(TransportError):
    """Ranks made different calls where all must make the same."""


class RankLostError(TransportError):
    """Another rank has died, and the MPI reports it."""


class ScheduleError(RingtrainError):
    """A schedule does not reach its goal."""


class OutputError(RingtrainError, OSError):
    """Standard output cannot be written. It is an OSError too, for code that continues without standard output."""


class OutputClosed(OutputError):
    exit_code = 141  # 128 + SIGPIPE, as of a shell's own tools


class Interrupted(RingtrainError):
    exit_code = 75


class HungUp(RingtrainError):
    exit_code = 129


def everywhere(error: RingtrainError) -> RingtrainError:
    """Return the same error, marked as one that every rank raises together."""
    error.everywhere = True
    return error


@contextmanager
def naming_packages():
    """Turn an ImportError of the block into a UsageError that names the missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "ringtrain"):
            raise  # a defect of ringtrain
        raise UsageError(NO_PACKAGE.format(package=package)) from error


@contextmanager
def naming_paths():
    """Turn an OSError of the block into a UsageError if it is of a path that cannot be looked up."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_PATHS or error.filename is None:
            raise
        raise UsageError(
            f"{error.filename}: {error.strerror}; give the path of a file or a folder that can be opened"
        ) from error


def plain(text: str, kept: str = "") -> str:
    """Return a text of others as :func:`~ringtrain.template.escaped` does; a very long one loses its middle."""
    return _shortened(escaped(_shortened(text), kept))  # an escape is longer than its character


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    ends = LONGEST // 2 - 50  # with the note about the middle no longer than LONGEST
    return f"{text[:ends]}… ({len(text) - 2 * ends:,} characters are left out here) …{text[-ends:]}"


def nearest(name: str, known) -> str:
    """Return the tail of an error about an unknown name: the nearest known one, and the list of all."""
    known = sorted(map(str, known))
    # Longer names are no typing errors, and the search for similar ones would take long.
    close = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE) if len(name) <= LONGEST_NAME else []
    close = [each for each in known if each.lower() == name.lower()] or close
    return f"{NEAREST.format(name=close[0]) if close else ''}known: {', '.join(known)}"
