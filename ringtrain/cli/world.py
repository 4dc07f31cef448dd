"""Running a command on every rank of the world, and ending every rank when one of them fails."""

import os
import sys
import traceback

import click

from ringtrain.errors import RingtrainError


def in_world(action, threads: int = 1) -> int:
    """``action(transport)`` on every rank; its exit code.

    An error that every rank raises is told by rank 0, and all end in good order. An error of one rank alone is told by
    that rank, which then aborts the others: they may be waiting for it.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # read by BLAS libraries when they are loaded
        os.environ.setdefault(name, str(threads))
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
    except BaseException:
        _tell(f"ringtrain: rank {transport.rank} failed:\n{traceback.format_exc()}")
        transport.abort(1)
        raise
    transport.close()
    return code


def _tell(message: str) -> None:
    click.echo(message, err=True)
    sys.stderr.flush()
