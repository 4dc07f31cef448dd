"""``ringtrain train``"""

import sys

import click

from ringtrain.cli.options import SECTIONS, Sectioned, flags_of, given
from ringtrain.config.record import TrainConfig


@click.command(cls=Sectioned, sections=SECTIONS)
@click.option("--config", "run_file", type=click.Path(), help="TOML run file; flags win over its keys.")
@flags_of(TrainConfig)
def train(run_file, **flags):
    """Train a model; under mpirun, on every rank together.

    With no arguments: the model `digits` on the handwritten digits that come with ringtrain. The recipe of the model
    file sets what is not given here. Results go to a run folder: configuration, log, curves, checkpoints.
    """
    from ringtrain.train.stopping.signals import watching

    with watching(last=True) as stop:  # before anything is loaded: what is told to stop then stops where all ranks can
        from ringtrain.cli.world import in_worlds
        from ringtrain.train.start.recover import start

        command = [sys.executable, "-m", "ringtrain.cli.replacement", *sys.argv[1:]]
        return in_worlds(lambda world: start(world, run_file, given(flags), command, stop))
