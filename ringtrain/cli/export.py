"""The command ``ringtrain export``."""

from pathlib import Path

import click

from ringtrain.cli.options import plugin_option
from ringtrain.cli.world import AVERAGED, tell_skipped
from ringtrain.show.output import echo
from ringtrain.weights import export as weights_export


@click.command()
@click.argument("target")
@plugin_option
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="File to write: .safetensors, .onnx.")
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--raw", is_flag=True, help="The weights of the last update, also of a run with --ema.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def export(target, out, best, raw, force):
    """Write the weights of TARGET, a checkpoint or a run folder: to a safetensors file in PyTorch's layouts, with
    torchvision's names where the model is one of its; or to an ONNX graph, whose input is values as in the data."""
    done = weights_export.export(target, out, best, force, raw)
    tell_skipped(done.skipped)
    averaged = AVERAGED if done.averaged else ""
    source = f"{done.path} (model {done.model}, iteration {done.iteration:,}){averaged}"
    echo(f"{out}: {done.tensors} tensors of {source}")
