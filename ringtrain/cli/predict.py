"""The command ``ringtrain predict``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ringtrain.cli import texts

if TYPE_CHECKING:
    from ringtrain.transport.base import Transport


@click.command()
@click.argument("target")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="File to write: .h5 or .csv.")
@click.option("--data", help="Data set. [that of the run]")
@click.option("--split", type=click.Choice(["train", "test"]), default="test", show_default=True)
@click.option("--features", "layer", help="A layer's output in place of classes and probabilities.")
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device. [as in the run]")
@click.option("--ops", help="Kernels. [those of the run]")
@click.option("--threads", type=int, help="Threads of a rank's operations. [OMP_NUM_THREADS if that is set, or 1]")
def predict(target, out, split, layer, best, force, **given):
    """Write the predictions of TARGET, a checkpoint or a run folder, for every example: classes and probabilities, or
    any layer's features."""
    from ringtrain.cli.options import given as only_given
    from ringtrain.cli.world import in_world, tell_skipped

    def action(transport: "Transport") -> None:
        from ringtrain.train.load import load
        from ringtrain.train.predict import write_predictions

        trained = load(transport, target, best, only_given(given), split)
        predicted = write_predictions(transport, trained, out, layer, force)
        if transport.rank == 0:
            tell_skipped(trained.skipped)
            right = "" if predicted.accuracy is None else texts.ACCURACY(percent=100 * predicted.accuracy)
            click.echo(texts.PREDICTED(out=out, examples=predicted.examples, accuracy=right))

    return in_world(action)
