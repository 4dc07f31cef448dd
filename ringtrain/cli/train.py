"""The command ``ringtrain train``."""

import sys
from functools import partial

import click

from ringtrain.child import child_command
from ringtrain.cli.options import Sectioned, explicit_flags, plugin_option, train_flags, train_sections

USUAL = (
    "run_file", "model", "init", "freeze", "loss", "data", "test_data", "augment", "resize", "batch", "epochs",
    "iterations", "seed", "optimizer", "momentum", "weight_decay", "clip_norm", "lr", "warmup", "lr_policy", "out",
    "resume", "early_stop", "evaluate_every", "checkpoint_every",
)  # fmt: skip


@click.command(cls=Sectioned, sections=train_sections(), usual=USUAL)
@click.option("--config", "run_file", type=click.Path(), help="TOML run file; flags win over its keys.")
@plugin_option
@train_flags
def train(run_file, **flags):
    """Train a model; under mpirun, on every rank together.

    Without options: the shipped `digits`. A [default] holds unless the model's recipe sets it. The run folder has log,
    curves and checkpoints.
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
