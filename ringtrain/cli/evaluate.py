"""The command ``ringtrain evaluate``."""

import json
from typing import TYPE_CHECKING

import click

from ringtrain.cli import texts

if TYPE_CHECKING:
    from ringtrain.transport.base import Transport


@click.command()
@click.argument("target")
@click.option("--data", help="Data set. [that of the run]")
@click.option("--split", type=click.Choice(["train", "test"]), default="test", show_default=True)
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device. [as in the run]")
@click.option("--ops", help="Kernels. [those of the run]")
@click.option("--threads", type=int, help="Threads of a rank's operations. [OMP_NUM_THREADS if that is set, or 1]")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON in place of words.")
def evaluate(target, split, best, as_json, **given):
    """Compute loss and accuracy of TARGET, a checkpoint or a run folder; the same at any number of ranks."""
    from ringtrain.cli.options import given as only_given
    from ringtrain.cli.world import in_world, tell_skipped

    def action(transport: "Transport") -> None:
        from ringtrain.train.load import load, score_of

        trained = load(transport, target, best, only_given(given), split)
        score = score_of(transport, trained)
        if transport.rank == 0:
            tell_skipped(trained.skipped)
            click.echo(_json(trained, split, score) if as_json else _words(trained, split, score))

    return in_world(action)


def _words(trained, split: str, score) -> str:
    return texts.SCORE(
        path=trained.path,
        model=trained.model.name,
        iteration=trained.iteration,
        split=split,
        loss=score.loss,
        percent=100 * score.accuracy,
        examples=score.examples,
    )


def _json(trained, split: str, score) -> str:
    return json.dumps(
        {
            "checkpoint": trained.path,
            "model": trained.model.name,
            "iteration": trained.iteration,
            "split": split,
            "loss": score.loss,
            "accuracy": score.accuracy,
            "examples": score.examples,
        }
    )
