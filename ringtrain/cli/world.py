"""Running a command on every rank of the world, and ending every rank when one of them fails."""

import os
import sys
import traceback

import click

from ringtrain.errors import RingtrainError
from ringtrain.transport.launcher import read_launch


def in_world(action) -> int:
    """``action(transport)`` on every rank; its exit code.

    An error that every rank raises is told by rank 0, and all end in good order. An error of one rank alone is told by
    that rank, which then aborts the others: they may be waiting for it.
    """
    from ringtrain.transport.world import connect

    transport = connect()
    try:
        code = action(transport) or 0
    except RingtrainError as error:
        code = error.exit_code
        if not error.everywhere:
            _tell(f"ringtrain: rank {transport.rank}: {error}")
            transport.abort(code)
        elif transport.rank == 0:
            _tell(f"ringtrain: {error}")
    except KeyboardInterrupt:
        code = 130
        transport.abort(code)
    except BaseException:
        _tell(f"ringtrain: rank {transport.rank} failed:\n{traceback.format_exc()}")
        transport.abort(1)
        raise
    transport.barrier()  # a rank that ends with an error code makes mpirun end the others: not before it is told
    transport.close()
    return code


def end_with(error: RingtrainError) -> int:
    """End with an error that was met before there was a world; its exit code.

    Ranks first find one another, so that one of them speaks, and none ends (which makes mpirun end the others) before
    it has. Ranks that had no such error hear of it in their first collective.
    """
    launch = read_launch(os.environ)
    if launch.size > 1:
        from ringtrain.train.together import together_json

        def tell_all(transport) -> None:
            together_json(transport, lambda: _raise(error))

        try:
            return in_world(tell_all)
        except RingtrainError:
            pass  # there is no world to be had, and that is the error
    if launch.rank == 0:
        _tell(f"ringtrain: {error}")
    return error.exit_code


def _raise(error: RingtrainError) -> None:
    raise error


def tell_skipped(skipped) -> None:
    """Of checkpoints that were passed over for an older one: a note for each, beside what the command prints."""
    for text in skipped:
        _tell(f"ringtrain: passed over: {text}")


def _tell(message: str) -> None:
    click.echo(message, err=True)
    sys.stderr.flush()
