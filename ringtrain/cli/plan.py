"""The command ``ringtrain plan``."""

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from ringtrain.cli.options import NUMBERS, Listed, Size
from ringtrain.cli.python_script import exchange_of
from ringtrain.cli.variants import variants_of
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.config.option import as_flag
from ringtrain.config.resolve import FLAGS, resolve
from ringtrain.errors import UsageError
from ringtrain.exchange.compatibility import check_options
from ringtrain.exchange.parts import PARTS
from ringtrain.humanize import plural
from ringtrain.plan.exchange_times import ExchangeTimes
from ringtrain.plan.layer_times import LayerTimes
from ringtrain.plan.plots import plan_figure, target_figure
from ringtrain.plan.prediction import PlanSettings, predict
from ringtrain.plan.tables import LINK, TARGET_GROUPS, json_text, plan_lines, target_json, target_lines
from ringtrain.plan.target_times import PLAN_ERROR, at_ranks, read_curves, target_rows
from ringtrain.report.comparison.target import parse_target
from ringtrain.show.output import echo, echo_notes
from ringtrain.show.results import OutputPaths, show_tables
from ringtrain.show.tables import csv_text
from ringtrain.train.start.script_profile import PROFILE

DEFAULTS = ExchangeConfig()
NAMES = Listed(click.STRING)
BITS = {"k": 1e3, "m": 1e6, "g": 1e9}
OF_CURVES = ("sync", "algorithm", "batch", "weak", "overlap", "bucket_bytes", "price")


class LinkRates(click.ParamType):
    """Rates of links, separated by commas: {text: bits a second}."""

    name = "rate,..."

    def convert(self, value, param, ctx):
        if isinstance(value, dict):
            return value
        rates = {text: re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", text) for text in value.split(",")}
        for text, match in rates.items():
            if match is None or not float(match[1]):
                self.fail(f"{text!r} is no rate: write it as 100mbit or 1gbit", param, ctx)
        return {text: float(match[1]) * BITS[match[2]] for text, match in rates.items() if match}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--layers",
    multiple=True,
    metavar="FILE",
    help="JSON of `ringtrain time MODEL`; one for each number of ranks a node and each batch of a rank.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="RUN",
    help="In place of MODEL and --layers: run folder of `python -m ringtrain.torch --profile`; likewise.",
)
@click.option("--fabric", required=True, metavar="FILE", help="JSON of `ringtrain bench-allreduce`.")
@click.option("-n", "--ranks", type=NUMBERS, help="Numbers of ranks. [1 and doubles, to 64 nodes or the sweep's one]")
@click.option("--per-node", type=click.IntRange(1), help="Ranks of a node. [the sweep's]")
@click.option(
    "--sync",
    metavar="A,B,...",
    help='Strategies, which may have options: "sharded,averaging --average-every 4 --compress top-k". [each]',
)
@click.option("-a", "--algorithm", type=NAMES, help="A row for each of these all-reduces. [the fastest]")
@click.option("-b", "--batch", type=click.IntRange(1), help="Images an iteration, over all ranks. [the layers']")
@click.option("--weak", is_flag=True, help="-b is of a rank: the batch grows with the ranks.")
@click.option("--overlap", type=click.Choice(["none", "backward"]), default=DEFAULTS.overlap, show_default=True)
@click.option(
    "--bucket-bytes", type=Size(1), default=DEFAULTS.bucket_bytes, help="Approximate gradient bytes of a bucket. [4M]"
)
@click.option("--price", type=click.FloatRange(0), help="Of an hour of a node: shows what a million examples cost.")
@click.option(
    "--curves", type=click.Path(path_type=Path), metavar="DIR", help="Runs of strategies, for the time to --target."
)
@click.option("--target", metavar="TEXT", help='With --curves: a score of these runs, as "loss 1.8" or "accuracy 90%".')
@click.option("--rates", type=LinkRates(), help="With --curves: of a node's link: 100mbit,1gbit. [the sweep's]")
@click.option("--json", "json_path", type=click.Path(), help="Write every row.")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line a row.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A picture: PNG, SVG or PDF.")
def plan(fabric, ranks, per_node, sync, algorithm, batch, price, curves, target, rates, **options):
    """Predict the iteration of MODEL, or of a script, on any number of ranks, from what was measured on a few.

    Says which strategy is the fastest, and from where on more ranks stop paying; with --curves which one reaches a
    target first over each link, and when. docs/plan.md has the model, and its errors.
    """
    paths = OutputPaths(options.pop("json_path"), options.pop("csv_path"), options.pop("output"))
    paths.check()
    if (curves is None) != (target is None) or (rates and curves is None):
        raise UsageError("--curves DIR and --target TEXT go together, and --rates with both")
    layer_times, exchanges = _layer_times(*map(options.pop, ("model", "layers", "profiles"))), ExchangeTimes(fabric)
    per_node = per_node or max(exchanges.measured_on.counts)
    if curves is not None:
        _plan_target(curves, parse_target(target), layer_times, exchanges, rates, ranks, per_node, paths)
        return
    most = per_node * (64 if len(exchanges.measured_on.nodes) > 1 else 1)
    counts = ranks or [1 << k for k in range(most.bit_length())]
    if min(counts) < 1:
        raise UsageError(f"-n {min(counts)}: ranks are counted from 1")
    strategies = _strategies(sync, layer_times.is_script)
    settings = PlanSettings(batch=batch or layer_times.first.batch, per_node=per_node, **options)
    rows = predict(layer_times, exchanges, sorted(set(counts)), strategies, algorithm or [], settings)
    echo(*plan_lines(layer_times, settings, rows, price))
    paths.write(lambda: json_text(layer_times, settings, rows), lambda: csv_text(asdict(rows[0]), map(asdict, rows)))
    paths.draw(partial(plan_figure, layer_times.model, settings, rows))


def _layer_times(model: str | None, layers: tuple[str, ...], profiles: tuple[str, ...]) -> LayerTimes:
    if profiles and not layers and model is None:
        title = "profile of `python -m ringtrain.torch --profile --out RUN script.py`"
        return LayerTimes([str(Path(run) / PROFILE) for run in profiles], title)
    if profiles or not layers or model is None:
        raise UsageError("give MODEL and --layers FILE of `ringtrain time MODEL`, or else --profile RUN of a script")
    layer_times = LayerTimes(layers)
    if model != layer_times.model:
        raise UsageError(
            f"{layers[0]} has the layers of {layer_times.model}, not of {model}: measure them by `ringtrain time "
            f"{model} --json`"
        )
    return layer_times


def _strategies(sync: str | None, is_script: bool) -> list[ExchangeConfig]:
    """Return the strategies of ``--sync``; without it all that a training, or a script, can have. Raises as ``train``,
    or the launcher of scripts, for options that do not go together."""
    default = ",".join(name for name in PARTS if name != "master" or not is_script)
    exchanges = []
    for variant in variants_of((), (sync or default,), ()):
        config = resolve((FLAGS, variant.flags))
        check_options(config)
        exchanges.append(exchange_of((FLAGS, variant.flags)) if is_script else config.exchange)
    return exchanges


def _plan_target(folder, target, layer_times, exchanges, rates, ranks, per_node, paths: OutputPaths) -> None:
    source = click.get_current_context().get_parameter_source
    for name in OF_CURVES:
        if source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"{as_flag(name)} is of a plan without --curves: runs have their strategies and batch")
    if ranks and len(ranks) > 1:
        raise UsageError(f"-n {','.join(map(str, ranks))}: a plan with --curves is of one number of ranks")
    curves, notes = read_curves(folder, layer_times.model, target)
    count, fitting, others = at_ranks(curves, ranks[0] if ranks else None)
    links = {text: exchanges.at_rate(rate) for text, rate in rates.items()} if rates else {"the sweep's": exchanges}
    rows = target_rows(layer_times, links, fitting, count, per_node)
    errors = f"from, to: of the seeds, and seconds with the plan's error of {PLAN_ERROR:.0%} too"
    notes = [f"seconds to {target.text}, medians over seeds; {errors}", *notes, *others, *layer_times.notes]
    show_tables(LINK, TARGET_GROUPS, rows)
    echo(*target_lines(rows))
    echo_notes(notes)
    paths.write(lambda: target_json(layer_times, target.text, rows, notes), lambda: csv_text(rows[0], rows))
    title = f"{layer_times.model}, {plural(count, 'rank')}: seconds to {target.text}, predicted"
    paths.draw(partial(target_figure, title, rows))
