"""How far a long measurement is."""

import time

import click

from ringtrain.cli import texts

PROGRESS_EVERY_S = 5.0


class ProgressLine:
    """A line on standard error, now and then: mpirun's pipes are no terminal, where one line could be redrawn."""

    def __init__(self, clock=time.monotonic):
        self._clock, self._told = clock, clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._clock() - self._told > PROGRESS_EVERY_S:
            self._told = self._clock()
            click.echo(texts.PROGRESS(what=what, done=done, total=total), err=True)
