"""Every error that ringtrain raises for a reason it knows, and the exit code it ends a run with.

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
    ├── ScheduleError                  1   a schedule that does not do what it says
    ├── OutputError                    1   standard output cannot be written
    │   └── OutputClosed             141       its reader went away: nothing is said
    └── Interrupted                   75   told to stop, by a signal or its job's end: to be requeued

A message names the thing, what it got, what it wanted and what to do. These errors are shown to the user
without a traceback; anything else is a defect of ringtrain and keeps its traceback. What they quote may be anything:
a message is made plain, whoever raises it (:func:`plain`).
"""

import difflib
from contextlib import contextmanager

LONGEST = 8000  # characters of a message
LONGEST_NAME = 200
CLOSE = 0.55  # of difflib's ratio: "mean" is near "min", and "Attention" is not near "Flatten"


class RingtrainError(Exception):
    """``everywhere`` is set on an error that every rank raises together: rank 0 alone then tells it."""

    exit_code = 1
    everywhere = False

    def __init__(self, message: str = ""):
        super().__init__(plain(message))


class UsageError(RingtrainError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class ModelError(UsageError):
    pass


class DataError(UsageError):
    pass


class CheckpointError(UsageError):
    pass


class DeviceError(UsageError):
    pass


class DeviceFullError(DeviceError):
    pass


class DivergedError(RingtrainError):
    exit_code = 3


class ReplicaError(RingtrainError):
    exit_code = 3


class StalledError(RingtrainError):
    """``awaited``: for whom and what, where that is known. ``whole``: it says what all ranks do."""

    exit_code = 4
    awaited = ""
    whole = False


class TransportError(RingtrainError):
    pass


class MismatchError(TransportError):
    pass


class RankLostError(TransportError):
    pass


class ScheduleError(RingtrainError):
    pass


class OutputError(RingtrainError, OSError):
    """An OSError as well, for code that goes on without standard output."""


class OutputClosed(OutputError):
    exit_code = 141  # 128 + SIGPIPE, as of a shell's own tools


class Interrupted(RingtrainError):
    exit_code = 75


def everywhere(error: RingtrainError) -> RingtrainError:
    """The same error, marked as one that every rank raises together."""
    error.everywhere = True
    return error


@contextmanager
def naming_packages():
    """A Python package that is imported inside and is not installed is told as a UsageError that names it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "ringtrain"):
            raise  # a defect of ringtrain
        raise UsageError(
            f"the Python package {package} is not installed, and this needs it: python -m pip install {package}; "
            "`ringtrain doctor` names all that are missing"
        ) from error


def plain(text: str) -> str:
    """A text of anybody's as a terminal can show it: what would move its cursor, colour, reorder or hide other text is
    written as an escape; a very long one loses its middle. What is plain stays as it is."""
    text = _shortened(text)
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return _shortened("".join(shown))  # an escape is longer than what it stands for


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    ends = LONGEST // 2 - 50  # with what is said of the middle no longer than LONGEST
    return f"{text[:ends]}… ({len(text) - 2 * ends:,} characters are left out here) …{text[-ends:]}"


def nearest(name: str, known) -> str:
    """The tail of an error about an unknown name: the nearest known one, and the list of all."""
    known = sorted(map(str, known))
    # Longer names are no slips of the pen, and looking for what is near them takes long.
    close = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE) if len(name) <= LONGEST_NAME else []
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"
