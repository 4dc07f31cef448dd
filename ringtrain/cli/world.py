"""Run a command on every rank of the world, and end every rank if one fails."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringtrain.errors import OutputClosed, RankLostError, RingtrainError, TransportError, naming_packages, naming_paths
from ringtrain.plugin import blamed
from ringtrain.show.output import complain, echo, from_ringtrain
from ringtrain.template import Lines, joined
from ringtrain.transport.activity import DEADLINE_S, Activity
from ringtrain.transport.fault_tolerance import end_job
from ringtrain.transport.launch_environment import read_launch

if TYPE_CHECKING:
    from ringtrain.transport.base import Transport
    from ringtrain.transport.world import World


AVERAGED = ", weights averaged (--ema)"  # beside what these weights give


@dataclass(slots=True)
class WorldSession:
    """A command on the ranks of a world. code: the exit code of this rank, once its command has ended"""

    world: "World"
    code: int = 0


def in_world(action) -> int:
    """Run ``action(transport)`` on every rank, and return its exit code. A guard checks its collectives; timings need
    :func:`ringtrain.monitor.guarded_transport.bare`."""
    with world_session() as session:
        check_command(session.world, " ".join(sys.argv[1:2]))
        session.code = action(session.world.enter()) or 0
    return session.code


def check_command(world: "World", command: str) -> None:
    """Raise UsageError if ranks run different commands: their next collectives would differ. Collective."""
    from ringtrain.transport.agree import agree

    if not world.joined:  # the survivors whom a replacement joins are past this
        agree(world.transport, {"command": command})


@contextmanager
def world_session() -> Iterator[WorldSession]:
    """Join the world, and end every rank of it together with its exit code.

    Rank 0 prints an error that every rank raises, and all end in order. A rank prints its own error, and aborts the
    others, which may wait for it. A rank that does not arrive, or whose file system does not answer, ends all with 4.
    """
    from ringtrain.monitor.hang_detector import HangDetector

    activity = Activity(deadline_of(os.environ))
    aborter = HangAborter(read_launch(os.environ).rank, activity)
    with HangDetector(activity, aborter.rank, aborter.end) as detector:
        session = WorldSession(_joined(activity, aborter))
        detector.listen()
        with _errors_printed(session):
            yield session
        session.world.end(session.code, _barrier(session.world.transport))


def _joined(activity, aborter: "HangAborter") -> "World":
    from ringtrain.monitor.guarded_transport import guarded
    from ringtrain.transport.world import World

    with activity.holds_gil("starting the MPI and finding the other ranks"):
        try:
            world = World(lambda transport: guarded(transport, activity), activity.deadline_s)
        except TransportError as error:  # this rank prints it: the others may have met
            aborter.end(error)
            raise
    aborter.world = world
    return world


@contextmanager
def _errors_printed(session: WorldSession) -> Iterator[None]:
    """Print an error, and set its exit code; abort the other ranks unless they raise it too. An unknown error of a
    plug-in's code is named by its file and line."""
    world = session.world
    try:
        with naming_packages(), naming_paths():
            yield
    except RingtrainError as error:
        session.code = error.exit_code
        if not error.everywhere and world.transport.size > 1:
            _tell(error, world.transport.rank)
            world.transport.abort(session.code)
        elif world.transport.rank == 0:
            _tell(error)
    except KeyboardInterrupt:
        session.code = 130
        world.transport.abort(session.code)
    except BaseException as error:
        plugin_error = blamed(error)
        if plugin_error is None:
            lines = joined([f"ringtrain: rank {world.transport.rank} failed:", Lines(traceback.format_exc())])
            echo(lines, err=True)
            world.transport.abort(1)
            raise
        session.code, several = plugin_error.exit_code, world.transport.size > 1
        _tell(plugin_error, world.transport.rank if several else None)
        if several:
            world.transport.abort(session.code)


def _barrier(transport: "Transport") -> bool:
    """Wait for the other ranks, since mpirun ends them after a non-zero exit code. Return whether a rank has died. Any
    other error is printed, and ends all ranks."""
    try:
        transport.barrier()
    except RankLostError:
        return True
    except RingtrainError as error:
        _tell(error, transport.rank)
        transport.abort(error.exit_code)
    return False


class HangAborter:
    """End a process that hangs, from a thread: this process alone before it has joined a world, then all ranks."""

    def __init__(self, rank: int, activity):
        self.rank, self._activity = rank, activity
        self.world: World | None = None

    def end(self, error: RingtrainError) -> None:
        os.write(2, f"{from_ringtrain(error, self.rank)}\n".encode(errors="backslashreplace"))
        self._activity.before_end(error)
        if self.world is None and isinstance(error, RankLostError):
            end_job()  # if this rank ended alone, the others would wait for it
        if self.world is not None and self.world.transport.size == 1:
            from ringtrain.transport.world import remove_segments

            remove_segments()
        if self.world is None or self.world.transport.size == 1:
            os._exit(error.exit_code)
        self.world.transport.abort(error.exit_code)


def deadline_of(environ) -> float:
    """Return the deadline of commands that set none, and before a command sets its own. Raises UsageError."""
    from ringtrain.launch.python_script import asked_deadline

    return asked_deadline(environ) or DEADLINE_S


def end_with(error: RingtrainError, alone: bool = False) -> int:
    """End with an error from before the world was joined, and return its exit code. ``alone``: this rank works alone,
    and prints its own error.

    Ranks join the world first, so that one of them prints the error before any ends, which makes mpirun end the others.
    Ranks without the error get it in their first collective.
    """
    launch = read_launch(os.environ)
    if launch.size > 1 and not alone:
        from ringtrain.transport.agree import together_json

        def raise_it() -> None:
            raise error

        try:
            return in_world(lambda transport: together_json(transport, raise_it))
        except RingtrainError:
            pass  # the world cannot be joined, and the error says so
    if alone or launch.rank == 0:
        _tell(error, launch.rank or None)
    return error.exit_code


def tell_skipped(skipped) -> None:
    """Print a note for each checkpoint that was passed over for an older one."""
    for text in skipped:
        echo(f"ringtrain: passed over: {text}", err=True)


def _tell(error: RingtrainError, rank: int | None = None) -> None:
    """Print an error. ``rank``: the one that has it, among several; None: all have it"""
    if not isinstance(error, OutputClosed):
        complain(error, rank)
