"""The recovery from a death: the survivors form a world of their own, with replacements if they are wanted.

    revoke     an error wakes all ranks that wait in the old world
    shrink     the survivors get a communicator of the live ranks
    gather     each sends its old rank and its facts; all agree that all have them, or shrink again
    calm       before replacements start: wait until no further death follows the last, as many do
    spawn      start the same command again for each lost rank; the new processes join (:func:`join_survivors`)
    order      the ranks of the new world: the holders of the newest state first, replacements last; or all by the
               numbers that they or those that they replace had

Every step ends with an agreement, which is the same on all ranks even if one dies: all go on, or all begin again.

Source: MPI Forum, ULFM chapter, "Fault-Tolerance", as of Open MPI 5; MPI 4.1, 11.8 for Spawn and Merge.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mpi4py import MPI

from ringtrain.errors import StalledError, TransportError
from ringtrain.transport.deadline import Deadline
from ringtrain.transport.fault_tolerance import MARK, REJOIN_S, end_job, end_unseen
from ringtrain.transport.mpi.messages import Messages
from ringtrain.transport.mpi.node import gather_text
from ringtrain.transport.mpi.requests import has_lost

SPAWNS = 2  # after so many failed starts of replacements the survivors continue without
CALM_S = 0.25  # deaths come in numbers, as where memory runs out; Open MPI's launcher may crash by one while it spawns
LAST = 1 << 20  # a key after all survivors' keys
_ABANDONED: list = []  # see abandon()
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RecoveredWorld:
    """The world after a death."""

    transport: Messages
    lost: tuple[int, ...]  # the dead ranks, by their numbers in the old world
    facts: tuple[dict, ...]  # of each survivor, in the order of the new world's ranks
    replaced: int = 0  # the number of replacements
    bridge: "Intercommunicator | None" = None  # joins replacements and survivors; None if there are no replacements


class Intercommunicator:
    """Joins processes that were started separately. After :meth:`take_down` Open MPI's launcher does not take the end
    of a replacement for a failure."""

    def __init__(self, inter, merged):
        inter.Set_errhandler(MPI.ERRORS_RETURN)
        merged.Set_errhandler(MPI.ERRORS_RETURN)
        self._inter, self.merged, self._comms = inter, merged, []

    def world(self, key: int) -> Messages:
        """A world of all these processes, in the order of ``key``. Collective."""
        self._comms.append(self.merged.Split(0, key))
        return Messages(self._comms[-1])

    def take_down(self) -> None:
        """Free the communicators, after the world is closed. Collective."""
        for comm in (*self._comms, self.merged):
            comm.Free()
        self._inter.Disconnect()


def survive(
    old: Messages,
    facts: dict,
    order: Callable[[dict], tuple] | None = None,
    wanted: int = 0,
    command: Sequence[str] = (),
    expired: Callable[[StalledError], None] = lambda error: None,
    limit_s: float = REJOIN_S,
) -> RecoveredWorld:
    """The world of the survivors of ``old``. Collective over them; each may call it from another place.

    facts:   JSON-able, of this rank; its number in ``old`` is added as "rank"
    order:   order(facts) → the key by which the new world's ranks are sorted; None: all keep their numbers, which close
             up where none is replaced
    wanted:  the number of ranks in all, if there is a ``command`` that starts replacements: of any rank, but with the
             numbers kept of none where rank 0 has died
    expired: expired(error) runs before the run ends because the recovery takes longer than ``limit_s``
    """
    with _deadline(expired, limit_s):
        abandon(old)
        comm: MPI.Comm = old.comm
        trials = SPAWNS if command else 0
        while True:
            comm = comm.Shrink()
            survivors = _settled(comm, partial(_gathered, comm, {**facts, "rank": old.rank}))
            if survivors is None:
                continue
            bridge, lost = None, set(range(old.size)) - {each["rank"] for each in survivors}
            if trials and comm.size < wanted and not (order is None and 0 in lost):
                if not _settled(comm, partial(_calm, comm)):
                    continue
                marked = _marked(command, order is None, lost)
                bridge, trials = _bridged(comm, marked, wanted - comm.size), trials - 1
                if bridge is None:
                    continue
            ranked = sorted(survivors, key=order or (lambda other: other["rank"]))
            key = old.rank if order is None else [other["rank"] for other in ranked].index(old.rank)
            world = _world_of(comm, bridge, key)
            if world is not None:
                return RecoveredWorld(world, tuple(sorted(lost)), tuple(ranked), world.size - comm.size, bridge)


def join_survivors(mark: str) -> tuple[Messages, Intercommunicator]:
    """The world in which this process replaces a rank; the other end of :func:`survive`. Does not return if the
    survivors continue without it because another rank was lost. ``mark``: the value of :data:`MARK`"""
    bridge = _merged(MPI.Comm.Get_parent(), high=True)
    key = int(mark.split(",")[MPI.COMM_WORLD.rank]) if mark else LAST + MPI.COMM_WORLD.rank
    world = _world_of(bridge.merged, bridge, key) if bridge else None
    if bridge is None or world is None:
        end_unseen()
    return world, bridge


def _marked(command: Sequence[str], by_number: bool, lost: Iterable[int]) -> list[str]:
    """Return the command with its mark. ``by_number``: whether a process takes the number of the rank it replaces."""
    return ["env", f"{MARK}={','.join(map(str, sorted(lost))) if by_number else ''}", *command]


def abandon(old: Messages) -> None:
    """Leave a world in which a rank has died: wake the ranks that wait in it, and end its threads here. Not collective.

    Its requests and their memory stay for the rest of the process: until all ranks have left, a message may still
    arrive."""
    old.abandon()
    _ABANDONED.append(old)


def _settled(comm, attempt: Callable[[], Value | None]) -> Value | None:
    """The value of ``attempt()``, a collective, if it succeeds on all ranks of ``comm``; else None on all of them."""
    try:
        value = attempt()
    except (MPI.Exception, TransportError):
        value = None
        with suppress(MPI.Exception):
            comm.Revoke()  # wakes the ranks that wait in it
    try:
        went_well = comm.Agree(int(value is not None))
    except MPI.Exception:  # a death that not all ranks knew of: all get this error
        return None
    return value if went_well else None


def _gathered(comm, facts: dict) -> list[dict]:
    return [json.loads(text) for text in gather_text(comm, json.dumps(facts))]


def _world_of(comm, bridge: Intercommunicator | None, key: int) -> Messages | None:
    """A world of the survivors and of the replacements beyond the bridge; None if any rank fails."""
    if bridge is None:
        return _settled(comm, lambda: Messages(comm.Split(0, key)))
    return _settled(bridge.merged, lambda: bridge.world(key))


def _bridged(comm, command: Sequence[str], count: int) -> Intercommunicator | None:
    """The bridge to ``count`` processes that ``command`` starts; None if any rank fails."""
    inter = _settled(comm, lambda: comm.Spawn(command[0], list(command[1:]), maxprocs=count))
    return inter and _settled(comm, lambda: _merged(inter, high=False))


def _calm(comm) -> bool | None:
    """True if no rank of ``comm`` dies within :data:`CALM_S`; else None."""
    until = time.monotonic() + CALM_S
    while time.monotonic() < until:
        if has_lost(comm):
            return None
        time.sleep(5e-3)
    return True


def _merged(inter, high: bool) -> Intercommunicator | None:
    """Both sides merged, the higher one last; None if this fails."""
    try:
        return Intercommunicator(inter, inter.Merge(high))
    except MPI.Exception:
        return None


def _deadline(expired: Callable[[StalledError], None], limit_s: float) -> Deadline:
    """Ends the run where the recovery takes too long: a call of the MPI may wait for ever."""
    error = StalledError(
        f"the survivors of a lost rank did not find each other within {limit_s:g} s. Continue from the last "
        "checkpoint (with --resume auto, but for a script of PyTorch)"
    )

    def expire() -> None:
        sys.stderr.write(f"ringtrain: {error}\n")
        expired(error)
        end_job()

    return Deadline(limit_s, -signal.SIGKILL, str(error), first=expire)  # a status of its own is not seen by others
