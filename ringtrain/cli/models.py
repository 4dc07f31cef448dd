"""The command ``ringtrain models``: list, show and copy."""

from pathlib import Path

import click
from rich.console import Console

from ringtrain.cli.hints import CommandGroup
from ringtrain.cli.options import plugin_option
from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.errors import UsageError, plain
from ringtrain.nn import spec
from ringtrain.nn.describe import total
from ringtrain.nn.head import with_classes
from ringtrain.show.output import echo
from ringtrain.show.tables import boxed_table
from ringtrain.storage import files


@click.group(cls=CommandGroup)
def models():
    """List and copy the bundled models, and show the cost of any model."""


@models.command("list")
def list_models():
    """List the models that --model knows by name."""
    rows = []
    for name in sorted(spec.available()):
        model = spec.load_model(name)
        graph = model.graph()
        sums = total(graph.describe())
        shapes = (_shape(graph.input_shape), _shape(sums.shape))
        rows.append((name, *shapes, f"{sums.parameters:,}", _scaled(sums.flops), model.summary))
    _console().print(_table(("model", "input", "output", "parameters", "FLOPs", "summary"), rows))


@models.command()
@click.argument("name")
@plugin_option
@click.option("-b", "--batch", type=click.IntRange(1), help="Examples held at once. [the recipe's batch]")
def show(name, batch):
    """Show NAME, a model or a TOML file: layers, shapes, parameters, FLOPs, bytes, recipe.

    Activation bytes are of a batch in float32; gradient bytes are exchanged in each iteration. A ReLU "in conv1" is
    computed together with that layer and has no array of its own.
    """
    model, console = spec.load_model(name), _console()
    resolve(recipe_layer(name, model.recipe))
    batch = batch or model.recipe.get("batch", 1)
    console.print(plain(f"{model.name}: {model.summary}"), highlight=False, markup=False)
    console.print(f"input {_input_line(model.input)}", highlight=False, markup=False)
    console.print(_layer_table(model.graph(), batch))
    for title, rows in (("recipe", [model.recipe]), ("results", model.results)):
        for row in filter(None, rows):
            line = ", ".join(f"{key} = {_plain(value)}" for key, value in row.items())
            console.print(plain(f"{title}: {line}"), highlight=False, markup=False, soft_wrap=True)


@models.command()
@click.argument("name")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="File to write. [NAME.toml]")
@click.option("--classes", type=click.IntRange(1), help="Units of the last layer.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def copy(name, out, classes, force):
    """Write the TOML file of NAME, a model or a TOML file, to be changed; `--model` takes its path."""
    model = spec.load_model(name)
    model = with_classes(model, classes) if classes else model
    path = out or Path(f"{model.name}.toml")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already: give another -o, or --force to replace it")
    files.write(path, model.text.encode())
    echo(f"{path}: train it by --model {path}")


def _layer_table(graph, batch: int):
    rows = graph.describe(batch)
    titles = ("layer", "kind", "output", "parameters", "FLOPs", f"activations of {batch}", "gradients")
    table = _table(titles, [("input", "", _shape(graph.input_shape)), *map(_cells, rows)])
    table.add_section()
    table.add_row(*_cells(total(rows)))
    return table


def _cells(row):
    counts = (f"{row.parameters:,}" if row.parameters else "", _scaled(row.flops))
    sizes = (_bytes(row.activation_bytes), _bytes(row.gradient_bytes))
    return row.layer, row.kind, _shape(row.shape), *counts, *sizes


def _input_line(model_input) -> str:
    steps = [f"minus the {model_input.mean} mean"] if model_input.mean != "none" else []
    steps += [f"times {model_input.scale:g}"] if model_input.scale != 1 else []
    steps += [f"divided by the {model_input.std} std"] if model_input.std != "none" else []
    steps += [f"cropped at random from {model_input.pad} pixels of padding"] if model_input.pad else []
    steps += ["mirrored at random"] if model_input.flip else []
    return ", ".join([_shape(model_input.shape), *steps])


def _table(titles, rows):
    whole = ("model", "layer", "kind")
    return boxed_table(titles, rows, (*whole, "input", "output", "summary"), whole)


def _console():
    """Return a console as wide as the terminal; without one, wide enough for every column."""
    return Console() if Console().is_terminal else Console(width=120)


def _shape(shape) -> str:
    return "x".join(map(str, shape))


def _scaled(count: float, unit: str = "", units=("", "k", "M", "G", "T")) -> str:
    """Return 1234567 as "1.23 M", and 0 as an empty text."""
    step = 0
    while count >= 999.5 and step < len(units) - 1:
        count, step = count / 1000, step + 1
    return f"{count:.3g} {units[step]}{unit}".strip() if count else ""


def _bytes(count: int) -> str:
    return _scaled(count, "B")


def _plain(value) -> str:
    """Return a value as TOML writes it."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text.lower() if isinstance(value, bool) else text
