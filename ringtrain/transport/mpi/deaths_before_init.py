"""Deaths of this node's ranks before the MPI has started. Open MPI's start waits for all ranks, also for a dead one if
the launcher does not end the others with it (`mpirun --with-ft ulfm`).

Ranks are children of their node's launcher. A missing rank may also have died just after its start, which the others
survive: so they have :data:`GONE_S` to finish their own start.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ringtrain.transport.activity import no_words
from ringtrain.transport.fault_tolerance import KILLED_S, NOT_SURVIVED, find_launcher, is_fault_tolerant
from ringtrain.transport.launch_environment import read_launch
from ringtrain.transport.waiting import peers

GONE_S = 5.0
TURN_S = 2 * KILLED_S  # one rank of a node reports and ends the job; the next one if the first cannot
PROC = Path("/proc")
RANK, LOCAL_SIZE, JOB = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"


def roll_of(environ: Mapping[str, str]) -> Callable[[], str]:
    """:meth:`DeathsBeforeInit.lost` if ranks survive one another and this node's ranks can be seen; else no words."""
    launcher = find_launcher(os.getppid()) if is_fault_tolerant(environ) else None
    if launcher is None or not environ.get(LOCAL_SIZE, "").isdigit():
        return no_words
    return DeathsBeforeInit(environ, launcher).lost


class DeathsBeforeInit:
    """Finds missing ranks. ``launcher``: the process whose children are this node's ranks"""

    def __init__(self, environ: Mapping[str, str], launcher: int, proc: Path = PROC, clock=time.monotonic):
        self._launch, self._job = read_launch(environ), environ.get(JOB)
        self._local = int(environ[LOCAL_SIZE])
        self._launcher, self._proc, self._clock = launcher, proc, clock
        self._ranks: dict[int, int] = {}  # by process
        self._seen: set[int] = set()
        self._present_ranks: set[int] = set()
        self._since = clock()  # the time of the last change

    def lost(self) -> str:
        """The ranks that have died, in words, once they are missing for long enough; empty until then."""
        present, now = self._present(), self._clock()
        if present != self._present_ranks:
            self._present_ranks, self._since = present, now
        self._seen |= present
        if self._launch.rank not in present or len(present) >= self._local:
            return ""
        turn = sorted(present).index(self._launch.rank)
        return self._words() if now - self._since >= GONE_S + TURN_S * turn else ""

    def _present(self) -> set[int]:
        children = self._children()
        for child in children - self._ranks.keys():
            rank = self._rank_of(child)
            if rank is not None:
                self._ranks[child] = rank
        return {self._ranks[child] for child in children & self._ranks.keys()}

    def _children(self) -> set[int]:
        children: set[int] = set()
        for file in (self._proc / str(self._launcher)).glob("task/*/children"):
            try:
                children.update(map(int, file.read_text().split()))
            except OSError:
                continue
        return children

    def _rank_of(self, child: int) -> int | None:
        """The rank of a child; None if it is of another job, or not a rank yet."""
        try:
            words = (self._proc / str(child) / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        environ = dict(word.split("=", 1) for word in words if "=" in word)
        rank = environ.get(RANK, "")
        return int(rank) if rank.isdigit() and environ.get(JOB) == self._job else None

    def _words(self) -> str:
        every = range(self._launch.size) if self._local == self._launch.size else self._seen
        gone, host = set(every) - self._present_ranks, socket.gethostname()
        count = self._local - len(self._present_ranks)
        who = peers(gone) if gone else f"{count} of {self._local} ranks"
        return f"{who} ({host}) died before all ranks had started, and the MPI's start waits for them. {NOT_SURVIVED}"
