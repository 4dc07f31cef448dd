"""A checkpoint that outlives the process it is of.

Open MPI's mpirun kills its ranks half a second after Ctrl-C or SIGTERM, which may be less than an iteration. So rank 0
forks at once: the child is a copy of the process, with the weights as they are after the last finished iteration, in a
session of its own that mpirun does not know. It writes the checkpoint and is gone. The parent goes on meanwhile, and
where its time suffices it ends in good order, with a newer checkpoint.
"""

import os
import signal
import warnings
from collections.abc import Callable


class Lifeboat:
    """save: writes the checkpoint; None where there is nothing to save, or no need to
    lock: the descriptor that keeps other runs out of the folder, until that is done too
    """

    def __init__(self, save: Callable[[], None] | None, lock: int | None = None):
        self._save, self._lock = save, lock
        self._held = self._wanted = False

    def hold(self) -> None:
        """The state is about to change: what is launched now waits for :meth:`release`."""
        self._held = True

    def release(self) -> None:
        """The state is that of an iteration again."""
        self._held = False
        if self._wanted:
            self.launch()

    def launch(self) -> None:
        """Save aside, once. May be called by a signal handler."""
        self._wanted = self._held
        if self._save is None or self._held:
            return
        save, self._save = self._save, None
        with warnings.catch_warnings():  # of forking with threads: the child uses none, nor their locks
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _row_away(save, self._lock)


def _row_away(save: Callable[[], None], lock: int | None) -> None:
    """The child's whole life. It touches no MPI, and nothing of the parent's files but the lock."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        # mpirun waits for whoever holds a rank's files, and takes an open connection for a living rank.
        kept, most = lock or 0, min(os.sysconf("SC_OPEN_MAX"), 1 << 16)
        os.closerange(0, kept)
        os.closerange(kept + bool(lock), most)
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        save()
    finally:
        os._exit(0)
