"""After a death: the survivors find one another again, in a world of their own, with replacements where wanted.

    revoke     whoever waits in the old world is woken, by an error
    shrink     the survivors have a communicator, of those that live
    gather     each says which rank it was, and what it holds; all agree that all have heard it, or shrink again
    calm       where replacements are wanted: until no further death follows the last, as many do
    spawn      in place of the lost, the same command is started anew; the new ones join (:func:`join`)
    order      the new world's ranks: who holds the newest state first, replacements last

Every step ends with an agreement, which a death does not divide: all go on, or all begin again.

Source: MPI Forum, ULFM chapter, "Fault-Tolerance", as of Open MPI 5; MPI 4.1, 11.8 for Spawn and Merge.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mpi4py import MPI

from ringtrain.errors import StalledError, TransportError
from ringtrain.transport import texts
from ringtrain.transport.deadline import Deadline
from ringtrain.transport.fault_tolerance import end_job
from ringtrain.transport.mpi.messages import Messages
from ringtrain.transport.mpi.node import gather_text
from ringtrain.transport.mpi.requests import has_lost

REJOIN_S = 120.0  # by when survivors have found one another: nothing of it takes a second but the start of a Python
SPAWNS = 2  # how often replacements are started, before the survivors go on without
CALM_S = 0.25  # deaths come in numbers, as where memory runs out; Open MPI's launcher may crash by one while it spawns
LAST = 1 << 20  # a place after those of all survivors
_ABANDONED: list = []  # see abandon()


@dataclass(frozen=True, slots=True)
class RecoveredWorld:
    """lost:     numbers of the dead in the old world
    facts:    what each survivor said, in the order of the new world's ranks
    replaced: how many were started in place of the dead
    bridge:   what holds them and the survivors together; None where there are none
    """

    transport: Messages
    lost: tuple[int, ...]
    facts: tuple[dict, ...]
    replaced: int = 0
    bridge: "Intercommunicator | None" = None


class Intercommunicator:
    """Between processes that were started apart. Where it is taken down in good order, Open MPI's launcher does not
    take the end of a replacement for a failure."""

    def __init__(self, inter, merged):
        inter.Set_errhandler(MPI.ERRORS_RETURN)
        merged.Set_errhandler(MPI.ERRORS_RETURN)
        self._inter, self.merged, self._made = inter, merged, []

    def world(self, place: int) -> Messages:
        """A world of all, in the order of their places. Collective."""
        self._made.append(self.merged.Split(0, place))
        return Messages(self._made[-1], {})

    def take_down(self) -> None:
        """After the world is closed. Collective."""
        for comm in (*self._made, self.merged):
            comm.Free()
        self._inter.Disconnect()


def survive(
    old: Messages,
    facts: dict,
    order: Callable[[dict], tuple],
    wanted: int = 0,
    command: Sequence[str] = (),
    expired: Callable[[StalledError], None] = lambda error: None,
) -> RecoveredWorld:
    """The world of those that are left of ``old``. Collective over the survivors, however they came here.

    facts:   JSON-able, of this rank; its number in ``old`` is added as "rank"
    order:   order(facts) → by which the new world's ranks are sorted
    wanted:  ranks in all, where ``command`` is given, by which replacements are started
    expired: expired(error): called before the run is ended, where that takes longer than :data:`REJOIN_S`
    """
    with _deadline(expired):
        abandon(old)
        comm, trials = old.comm, SPAWNS if command else 0
        while True:
            comm = comm.Shrink()
            told = _settled(comm, lambda comm=comm: _gathered(comm, {**facts, "rank": old.rank}))
            if told is None:
                continue
            bridge = None
            if trials and comm.size < wanted:
                if not _settled(comm, lambda comm=comm: _calm(comm)):
                    continue
                bridge, trials = _bridged(comm, command, wanted - comm.size), trials - 1
                if bridge is None:
                    continue
            ranked = sorted(told, key=order)
            place = [other["rank"] for other in ranked].index(old.rank)
            made = _world_of(comm, bridge, place)
            if made is not None:
                lost = set(range(old.size)) - {other["rank"] for other in ranked}
                return RecoveredWorld(made, tuple(sorted(lost)), tuple(ranked), made.size - comm.size, bridge)


def join() -> tuple[Messages, Intercommunicator]:
    """The world in which this process replaces a rank; the other end of :func:`survive`. Does not return where the
    others go on without it, since another rank was lost meanwhile."""
    bridge = _merged(MPI.Comm.Get_parent(), high=True)
    made = bridge and _world_of(bridge.merged, bridge, LAST + MPI.COMM_WORLD.rank)
    if made is None:
        os.kill(os.getpid(), signal.SIGKILL)  # a status of its own would end the others
    return made, bridge


def abandon(old: Messages) -> None:
    """Leave a world in which a rank has died: wake whoever waits in it, and end what runs in it here. Not collective.

    Its requests are not freed, nor the memory that they move: until all have left, a message may still arrive. They are
    kept for the rest of the process."""
    old.abandon()
    _ABANDONED.append(old)


def _settled(comm, attempt: Callable[[], object]):
    """``attempt()``, a collective, where it has gone well on all ranks of ``comm``; else None on all of them."""
    try:
        value = attempt()
    except (MPI.Exception, TransportError):
        value = None
        with suppress(MPI.Exception):
            comm.Revoke()  # who waits in it is woken
    try:
        went_well = comm.Agree(int(value is not None))
    except MPI.Exception:  # a death that not all knew of: all ranks are told so alike
        return None
    return value if went_well else None


def _gathered(comm, facts: dict) -> list[dict]:
    return [json.loads(text) for text in gather_text(comm, json.dumps(facts))]


def _world_of(comm, bridge: Intercommunicator | None, place: int) -> Messages | None:
    """A world of the survivors, and of those beyond the bridge; None where that went wrong on any rank."""
    if bridge is None:
        return _settled(comm, lambda: Messages(comm.Split(0, place), {}))
    return _settled(bridge.merged, lambda: bridge.world(place))


def _bridged(comm, command: Sequence[str], count: int) -> Intercommunicator | None:
    """To so many processes, started by ``command``; None where that went wrong on any rank."""
    inter = _settled(comm, lambda: comm.Spawn(command[0], list(command[1:]), maxprocs=count))
    return inter and _settled(comm, lambda: _merged(inter, high=False))


def _calm(comm) -> bool | None:
    """True where no rank of ``comm`` has died by :data:`CALM_S` from now."""
    until = time.monotonic() + CALM_S
    while time.monotonic() < until:
        if has_lost(comm):
            return None
        time.sleep(5e-3)
    return True


def _merged(inter, high: bool) -> Intercommunicator | None:
    """Both sides together, the higher one last; None where that goes wrong."""
    try:
        return Intercommunicator(inter, inter.Merge(high))
    except MPI.Exception:
        return None


def _deadline(expired: Callable[[StalledError], None]) -> Deadline:
    """Ends the run where the recovery takes too long: a call of the MPI may wait for ever."""
    error = StalledError(texts.NOT_REJOINED(seconds=REJOIN_S))

    def expire() -> None:
        sys.stderr.write(f"ringtrain: {error}\n")
        expired(error)
        end_job()

    return Deadline(REJOIN_S, -signal.SIGKILL, str(error), first=expire)  # a status of its own is not seen by others
