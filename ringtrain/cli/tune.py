"""The command ``ringtrain tune``."""

import click

from ringtrain.bench.tune import TuneOptions, run
from ringtrain.cli.options import flags_of
from ringtrain.cli.world import in_world


@click.command()
@flags_of(TuneOptions)
def tune(**flags):
    """Measure which all-reduce is fastest here, for `--algorithm auto`.

    Run it under mpirun, as you run your training: the result holds for that machine and that layout of ranks. A file
    holds several layouts; a candidate wins only if all its results were right. docs/slow.md has the rules.
    """
    return in_world(lambda transport: run(transport, TuneOptions(**flags)))
