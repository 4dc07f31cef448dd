"""Running a command on every rank of the world, and ending every rank when one of them fails."""

import os
import sys
import traceback

import click

from ringtrain.cli import texts
from ringtrain.errors import OutputClosed, RankLostError, RingtrainError, TransportError, UsageError, naming_packages
from ringtrain.transport.launch_environment import read_launch


def in_world(action) -> int:
    """``action(transport)`` on every rank; its exit code. Its collectives are watched; what it times it takes
    :func:`ringtrain.monitor.guarded_transport.bare`."""
    return in_worlds(lambda world: action(world.enter()))


def in_worlds(action) -> int:
    """``action(world)`` on every rank, which may change its transport; its exit code.

    An error that every rank raises is told by rank 0, and all end in good order. An error of one rank alone is told by
    that rank, which then aborts the others: they may be waiting for it. A rank that does not come, or whose file system
    does not answer, ends all of them with 4.
    """
    from ringtrain.monitor.hang_detector import HangDetector
    from ringtrain.transport.activity import Activity

    activity = Activity(deadline_of(os.environ))
    ender = Ender(read_launch(os.environ).rank, activity)
    with HangDetector(activity, ender.rank, ender.end) as detector:
        return _in_worlds(action, activity, ender, detector)


def _in_worlds(action, activity, ender: "Ender", detector) -> int:
    from ringtrain.monitor.guarded_transport import watched
    from ringtrain.transport.activity import no_words
    from ringtrain.transport.mpi.deaths_before_init import roll_of
    from ringtrain.transport.world import World

    activity.lost = roll_of(os.environ)
    with activity.holds_gil(texts.STARTING):
        try:
            world = ender.world = World(lambda transport: watched(transport, activity), activity.deadline_s)
        except TransportError as error:  # of this rank, which is to tell it: the others may have met
            ender.end(error)
    activity.lost = no_words
    detector.listen()
    try:
        with naming_packages():
            code = action(world) or 0
    except RingtrainError as error:
        code = error.exit_code
        if not error.everywhere and world.transport.size > 1:
            _tell_error(error, texts.FROM_RANK(rank=world.transport.rank, text=error))
            world.transport.abort(code)
        elif world.transport.rank == 0:
            _tell_error(error, texts.FROM(text=error))
    except KeyboardInterrupt:
        code = 130
        world.transport.abort(code)
    except BaseException:
        _tell(texts.RANK_FAILED(rank=world.transport.rank, traceback=traceback.format_exc()))
        world.transport.abort(1)
        raise
    world.end(code, _meet(world.transport))
    return code


def _meet(transport) -> bool:
    """A rank that ends with an error code makes mpirun end the others: not before it is told. Whether one has died
    since, which has no more to say; one that does something else is told of, since no end is left to come to
    together."""
    try:
        transport.barrier()
    except RankLostError:
        return True
    except RingtrainError as error:
        _tell(texts.FROM_RANK(rank=transport.rank, text=error))
        transport.abort(error.exit_code)
    return False


class Ender:
    """What a thread ends that sees that the process does not get on: the process itself before there is a world, or
    where it is alone, and else all ranks."""

    def __init__(self, rank: int, activity):
        self.rank, self.world, self._activity = rank, None, activity

    def end(self, error: RingtrainError) -> None:
        from ringtrain.transport.fault_tolerance import end_job

        os.write(2, f"{texts.FROM_RANK(rank=self.rank, text=error)}\n".encode(errors="backslashreplace"))
        self._activity.before_end(error)
        if self.world is None and isinstance(error, RankLostError):
            end_job()  # a rank that ended by itself would be waited for by the others
        if self.world is not None and self.world.transport.size == 1:
            from ringtrain.transport.world import remove_segments

            remove_segments()
        if self.world is None or self.world.transport.size == 1:
            os._exit(error.exit_code)
        self.world.transport.abort(error.exit_code)


def deadline_of(environ) -> float:
    """Of what comes before a command's own is known, and of commands that have none. Raises UsageError."""
    from ringtrain.transport.activity import DEADLINE_S

    given = environ.get("RINGTRAIN_DEADLINE_S")
    try:
        seconds = DEADLINE_S if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise UsageError(texts.NO_DEADLINE(value=given))
    return seconds


def end_with(error: RingtrainError, alone: bool = False) -> int:
    """End with an error that was met before there was a world; its exit code. ``alone``: this rank works by itself, and
    tells its own.

    Ranks first find one another, so that one of them speaks, and none ends (which makes mpirun end the others) before
    it has. Ranks that had no such error hear of it in their first collective.
    """
    launch = read_launch(os.environ)
    if launch.size > 1 and not alone:
        from ringtrain.train.agree import together_json

        def tell_all(transport) -> None:
            together_json(transport, lambda: _raise(error))

        try:
            return in_world(tell_all)
        except RingtrainError:
            pass  # there is no world to be had, and that is the error
    if alone or launch.rank == 0:
        own = launch.rank
        _tell_error(error, texts.FROM_RANK(rank=own, text=error) if own else texts.FROM(text=error))
    return error.exit_code


def _raise(error: RingtrainError) -> None:
    raise error


def tell_skipped(skipped) -> None:
    """Of checkpoints that were passed over for an older one: a note for each, beside what the command prints."""
    for text in skipped:
        _tell(texts.SKIPPED(reason=text))


def _tell_error(error: RingtrainError, message: str) -> None:
    if not isinstance(error, OutputClosed):
        _tell(message)


def _tell(message: str) -> None:
    click.echo(message, err=True)
    sys.stderr.flush()
