"""The command ``ringtrain plan``."""

from functools import partial

import click

from ringtrain.cli.options import Numbers
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError, nearest
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.plots import plan_figure
from ringtrain.plan.prediction import PlanSettings, predict
from ringtrain.plan.strategies import STRATEGIES
from ringtrain.plan.tables import json_text, plan_lines
from ringtrain.show.output import echo
from ringtrain.show.results import OutputPaths

DEFAULTS = ExchangeConfig()


class Names(click.ParamType):
    """Names, separated by commas."""

    name = "name,..."

    def convert(self, value, param, ctx):
        return value if isinstance(value, list) else [name.strip() for name in value.split(",") if name.strip()]


@click.command()
@click.argument("model")
@click.option(
    "--layers",
    multiple=True,
    required=True,
    metavar="FILE",
    help="JSON of `ringtrain time MODEL`; one for each number of ranks a node and each batch of a rank.",
)
@click.option("--fabric", required=True, metavar="FILE", help="JSON of `ringtrain bench-allreduce`.")
@click.option("-n", "--ranks", type=Numbers(), help="Numbers of ranks. [1 and its doubles to 64 nodes]")
@click.option("--per-node", type=click.IntRange(1), help="Ranks of a node. [the sweep's]")
@click.option("--sync", type=Names(), help="Strategies. [allreduce,sharded,server,averaging]")
@click.option("-a", "--algorithm", type=Names(), help="A row for each of these all-reduces. [the fastest]")
@click.option("-b", "--batch", type=click.IntRange(1), help="Images an iteration, over all ranks. [the layers']")
@click.option("--weak", is_flag=True, help="-b is of a rank: the batch grows with the ranks.")
@click.option("--overlap", type=click.Choice(["none", "backward"]), default=DEFAULTS.overlap, show_default=True)
@click.option(
    "--average-every",
    type=click.IntRange(1),
    default=DEFAULTS.average_every,
    show_default=True,
    help="With averaging: iterations between averages.",
)
@click.option(
    "--bucket-bytes",
    type=click.IntRange(1),
    default=DEFAULTS.bucket_bytes,
    show_default=True,
    help="Approximate gradient bytes of a bucket.",
)
@click.option("--price", type=click.FloatRange(0), help="Of an hour of a node: shows what a million images cost.")
@click.option("--json", "json_path", type=click.Path(), help="Write every row.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A picture: PNG, SVG or PDF.")
def plan(model, layers, fabric, ranks, per_node, sync, algorithm, batch, price, json_path, output, **options):
    """Predict the iteration of MODEL on any number of ranks, from what was measured on a few.

    Says which strategy is the fastest, and from where on more ranks stop paying. docs/plan.md has the model, and its
    errors.
    """
    paths = OutputPaths(json_path, plot_path=output)
    paths.check()
    layer_times, exchanges = LayerTimes(layers), ExchangeTimes(fabric)
    if model != layer_times.model:
        raise UsageError(
            f"{layers[0]} has the layers of {layer_times.model}, not of {model}: measure them by `ringtrain time "
            f"{model} --json`"
        )
    for name in sync or ():
        if name not in STRATEGIES:
            raise UsageError(f"--sync {name}: plans are of {', '.join(STRATEGIES)}{nearest(name, STRATEGIES)}")
    per_node = per_node or max(exchanges.measured_on.counts)
    counts = ranks or [1 << k for k in range((64 * per_node).bit_length())]
    if min(counts) < 1:
        raise UsageError(f"-n {min(counts)}: ranks are counted from 1")
    settings = PlanSettings(batch=batch or layer_times.first.batch, per_node=per_node, **options)
    rows = predict(layer_times, exchanges, sorted(set(counts)), sync or list(STRATEGIES), algorithm or [], settings)
    echo(*plan_lines(layer_times, settings, rows, price))
    paths.write(lambda: json_text(layer_times, settings, rows))
    paths.draw(partial(plan_figure, layer_times.model, settings, rows))
