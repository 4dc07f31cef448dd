"""The end of a communicator's use: by its close, by an error in the middle of a call, in a process that is forked."""

import os
import weakref
from collections.abc import Callable

from ringtrain.errors import MismatchError, RingtrainError, UsageError


class Usable:
    """Surrounds each call of a communicator: ``with usable: …`` raises UsageError if it is of no more use, and notes an
    error that makes it so. A call that is cut may have moved some of its numbers: the next call could meet another call
    of the other ranks, and give wrong numbers.

    ended: called when it is of no more use
    """

    def __init__(self, ended: Callable[[], None]):
        self.why_not, self._ended = "", ended

    def check(self) -> None:
        """Raise UsageError if it is of no more use."""
        if self.why_not:
            raise UsageError(self.why_not)

    def end(self, why: str) -> None:
        """Let all calls from now on be refused, with the first reason."""
        self.why_not = self.why_not or why
        self._ended()

    def end_by(self, error: BaseException) -> None:
        """Note an error of a call: a signal's, such as KeyboardInterrupt, may come at any point of it."""
        if isinstance(error, MismatchError) or not isinstance(error, RingtrainError):
            cause = f"{type(error).__name__}: {error}".rstrip(": ")
            self.end(
                f"a call of this communicator was ended by {cause}, and the other ranks may be in another one: close() "
                "it on all ranks and make another"
            )

    def __enter__(self) -> None:
        self.check()

    def __exit__(self, kind, error: BaseException | None, trace) -> None:
        if error is not None:
            self.end_by(error)


FORKED = (
    "the communicator is of the process that this one was forked from, and is used there alone: hand the arrays to "
    "it, or start more ranks with mpirun"
)
# All communicators of this process. A fork ends their use in the child, where the MPI's connections and the counters in
# shared memory are the parent's; the death of a rank ends it where the others go on.
LEAVING: weakref.WeakSet = weakref.WeakSet()


def _leave_all() -> None:
    for communicator in list(LEAVING):
        communicator.leave(FORKED)


os.register_at_fork(after_in_child=_leave_all)
