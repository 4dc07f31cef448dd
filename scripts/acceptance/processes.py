"""Run a program for a limited time, and end it with all its processes."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

GRACE_S = 5.0  # for a process to end after SIGTERM
BEAT_S = 5.0
NOT_DONE = "not done"


def ended(command: list[str], limit: float, beat: Callable[[], None] = lambda: None, **options) -> int | None:
    """Return its exit code; None if it took longer: ranks that are left would keep the GPU from the next stage.
    ``beat()`` is called every few seconds meanwhile. ``options``: of Popen. Raises: OSError where it cannot be
    started."""
    process, due = None, list[int]()
    # An exception of the handler would leave a program that has just begun, and that nothing here knows yet.
    handler = signal.signal(signal.SIGTERM, lambda number, _: due.append(number))
    try:
        process = subprocess.Popen(command, start_new_session=True, **options)
        signal.signal(signal.SIGTERM, handler)
        for number in due:
            signal.raise_signal(number)
        end_at = time.monotonic() + limit
        while (left := end_at - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(BEAT_S, left))
            beat()
        return None
    finally:
        signal.signal(signal.SIGTERM, handler)
        if process is not None and process.returncode is None:
            end(process)


def end(process, grace: float = GRACE_S) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun hands the first on
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(grace)


def ending(code: int | None) -> str:
    """Return how a program ended, in words; None: it was ended by its limit."""
    if code is None:
        return NOT_DONE
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"
