"""The progress of a long measurement."""

import time

from ringtrain.cli.output import echo

PROGRESS_EVERY_S = 5.0


class ProgressLine:
    """Print a line on standard error every few seconds: under mpirun there is no terminal to redraw a line."""

    def __init__(self, clock=time.monotonic):
        self._clock, self._shown_at = clock, clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._clock() - self._shown_at > PROGRESS_EVERY_S:
            self._shown_at = self._clock()
            echo(f"# {what}: {done} of {total} done", err=True)
