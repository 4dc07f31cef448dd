"""The command ``ringtrain predict``."""

from pathlib import Path

import click

from ringtrain.cli.options import explicit_flags, layout_flags, plugin_option, run_flags
from ringtrain.cli.world import AVERAGED, in_world, tell_skipped
from ringtrain.errors import UsageError
from ringtrain.show.output import complain, echo, echo_notes
from ringtrain.train.load import load, load_model
from ringtrain.train.predict import of_data, of_inputs, write_predictions
from ringtrain.transport.base import Transport

STANDARD_OUTPUT = Path("-")


@click.command()
@click.argument("target", metavar="RUN")
@click.argument("inputs", metavar="[INPUT]...", nargs=-1)
@plugin_option
@click.option(
    "-o",
    "--out",
    default=STANDARD_OUTPUT,
    type=click.Path(path_type=Path, allow_dash=True),
    help="File to write: .jsonl, .csv or .h5; - for standard output, as JSON lines. [default: -]",
)
@click.option("--top", type=click.IntRange(1), help="Classes of a JSON line, the most probable first. [default: 5]")
@click.option("--data", help="Data set in place of INPUT. [that of the run]")
@click.option("--split", type=click.Choice(["train", "test"]), help="Part of a data set. [default: test]")
@click.option("--features", "layer", help="A layer's output in place of classes and probabilities.")
@layout_flags
@run_flags("bad_images")
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--raw", is_flag=True, help="The weights of the last update, also of a run with --ema.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Device. [as in the run]")
@click.option("--ops", help="Kernels. [those of the run]")
@click.option("--threads", type=int, help="Threads of a rank's operations. [OMP_NUM_THREADS if that is set, or 1]")
def predict(target, inputs, out, top, split, layer, best, raw, force, **options):
    """Write the predictions of RUN, a checkpoint or a run folder, for every INPUT: image files, folders of them (with
    all folders in them), .npy and .npz arrays, and data sets; no labels are needed. Without INPUT for every example of
    a data set.

    An image of any size is resized and cropped to that of the training images. A file that cannot be read gets a line
    with an error, and the exit code is 1.
    """
    if inputs and options["data"]:
        raise UsageError(f"--data {options['data']} stands in place of inputs: leave it out, or name it as an input")

    def action(transport: Transport) -> int:
        if inputs:
            trained = load_model(transport, target, best, explicit_flags(options), raw)
            sources = of_inputs(transport, trained, inputs, split)
        else:
            trained = load(transport, target, best, explicit_flags(options), split or "test", raw)
            sources = of_data(trained)
        predicted = write_predictions(transport, trained, sources, out, layer, force, top, named=bool(inputs))
        if transport.rank == 0:
            tell_skipped(trained.skipped)
            echo_notes((note for source in sources for note in source.notes), err=True)
            _tell(out, predicted, AVERAGED if trained.averaged else "")
        return 1 if predicted.bad else 0

    return in_world(action)


def _tell(out: Path, predicted, averaged: str) -> None:
    right = "" if predicted.accuracy is None else f", accuracy {100 * predicted.accuracy:.2f} %"
    to_file = out != STANDARD_OUTPUT
    if to_file or right:
        name = out if to_file else "standard output"
        echo(f"{name}: {predicted.examples:,} examples{right}{averaged}", err=not to_file)
    if predicted.bad:
        message = (
            f"{predicted.bad:,} of {predicted.examples:,} could not be read and have an error in place of a "
            f"prediction: {predicted.first}"
        )
        complain(message)
