"""The command ``ringtrain export``."""

from pathlib import Path

import click

from ringtrain.cli import texts


@click.command()
@click.argument("target")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="File to write: .safetensors, .onnx.")
@click.option("--best", is_flag=True, help="The best checkpoint of a run folder, in place of the newest.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def export(target, out, best, force):
    """Write the weights of TARGET, a checkpoint or a run folder: to a safetensors file in PyTorch's layouts, with
    torchvision's names where the model is one of its; or to an ONNX graph, whose input is values as in the data."""
    from ringtrain.cli.world import tell_skipped
    from ringtrain.weights.export import export

    done = export(target, out, best, force)
    tell_skipped(done.skipped)
    click.echo(
        texts.EXPORTED(out=out, path=done.path, tensors=done.tensors, model=done.model, iteration=done.iteration)
    )
