"""Run a program for a limited time, and end it with all its processes."""

import os
import signal
import subprocess
from contextlib import suppress

GRACE_S = 5.0  # for a process to end after SIGTERM


def ended(command: list[str], limit: float, grace: float = GRACE_S, **given) -> int | None:
    """Return its exit code; None if it took longer: ranks that are left would keep the GPU from the next stage.
    ``given``: to Popen. Raises: OSError where it cannot be started."""
    process = subprocess.Popen(command, start_new_session=True, **given)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            end(process, grace)


def end(process, grace: float = GRACE_S) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun hands the first on
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(grace)
