"""Run a program for a limited time, and end it with all its processes."""

import os
import signal
import subprocess
from contextlib import suppress

GRACE_S = 5.0  # for a process to end after SIGTERM


def ended(command: list[str], limit: float, grace: float = GRACE_S, **given) -> int | None:
    """Return its exit code; None if it took longer: ranks that are left would keep the GPU from the next stage.
    ``given``: to Popen. Raises: OSError where it cannot be started."""
    process, due = None, list[int]()
    # An exception of the handler would leave a program that has just begun, and that nothing here knows yet.
    handler = signal.signal(signal.SIGTERM, lambda number, _: due.append(number))
    try:
        process = subprocess.Popen(command, start_new_session=True, **given)
        signal.signal(signal.SIGTERM, handler)
        for number in due:
            signal.raise_signal(number)
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        signal.signal(signal.SIGTERM, handler)
        if process is not None and process.returncode is None:
            end(process, grace)


def end(process, grace: float = GRACE_S) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun hands the first on
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(grace)
