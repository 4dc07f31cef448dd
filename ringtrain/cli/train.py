"""The command ``ringtrain train``."""

import sys
from functools import partial

import click

from ringtrain.child import child_command
from ringtrain.cli.options import Sectioned, explicit_flags, plugin_option, train_flags, train_sections


@click.command(cls=Sectioned, sections=train_sections())
@click.option("--config", "run_file", type=click.Path(), help="TOML run file; flags win over its keys.")
@plugin_option
@train_flags
def train(run_file, **flags):
    """Train a model; under mpirun, on every rank together.

    With no arguments: the model `digits` on the handwritten digits that come with ringtrain. The recipe of the model
    file sets what is not given here. Results go to a run folder: configuration, log, curves, checkpoints.
    """
    from ringtrain.train.stopping.signals import watching

    with watching(last=True) as stop:  # first, so that a signal while modules load stops all ranks together
        from ringtrain.cli.world import check_command, world_session
        from ringtrain.train.options import read_options
        from ringtrain.train.start.recover import ElasticRun, end_all

        with world_session() as session:
            check_command(session.world, "train")
            stop.end_all = partial(end_all, session.world)
            options, replacement = read_options(run_file, explicit_flags(flags)), []
            if options.elastic is not None:
                replacement = child_command("ringtrain", *sys.argv[1:])  # of a lost rank
            ElasticRun(session.world, options, replacement, stop).train()
        return session.code
