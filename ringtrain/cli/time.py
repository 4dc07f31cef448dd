"""The command ``ringtrain time``."""

import os
import sys
from contextlib import closing
from functools import partial

import click

from ringtrain import plugin
from ringtrain.bench.header import make_header
from ringtrain.bench.layers.layer_rows import layer_rows, layer_table, summary_lines, totals
from ringtrain.bench.layers.layers import ITERATION, LayerBench, keys_of, measure_layers, measure_peaks
from ringtrain.bench.measure.timing import START
from ringtrain.cli.options import plugin_option
from ringtrain.cli.world import in_world
from ringtrain.config.resolve import recipe_layer, resolve
from ringtrain.data.batches.batches import Batches
from ringtrain.errors import UsageError
from ringtrain.exchange.compatibility import check_options
from ringtrain.humanize import plural
from ringtrain.memory.workspace import Workspace
from ringtrain.monitor.guarded_transport import bare
from ringtrain.nn import spec
from ringtrain.nn.losses import make_loss
from ringtrain.optim.catalogue import make_optimizer
from ringtrain.show.output import echo
from ringtrain.show.results import OutputPaths, is_live
from ringtrain.show.tables import json_text, plain_lines, print_whole
from ringtrain.train.assembly.assemble import Assembly, assemble
from ringtrain.train.assembly.data import read_data
from ringtrain.train.assembly.device import open_device
from ringtrain.train.run.iteration_times import ENDLESS, iteration_times, without_exchange
from ringtrain.train.run.records import peak_bytes
from ringtrain.train.step.input import DeviceInput
from ringtrain.transport.agree import agree, on_root, take_turns, together
from ringtrain.transport.base import Transport


@click.command()
@click.argument("model")
@plugin_option
@click.option("-b", "--batch", type=click.IntRange(1), help="Images an iteration, over all ranks. [the recipe's]")
@click.option("-n", "--iterations", type=click.IntRange(1), default=10, show_default=True, help="Timed iterations.")
@click.option(
    "-w", "--warm-up", type=click.IntRange(0), default=1, show_default=True, help="Untimed iterations before them."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", help="Of --device cuda: float32, tf32, bfloat16 or float16. [float32]")
@click.option("--ops", default="cpu", show_default=True, help="Kernels: cpu or reference.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@click.option(
    "--threads", type=click.IntRange(1), help="Threads of a rank's operations. [OMP_NUM_THREADS if that is set, or 1]"
)
@click.option("--json", "json_path", type=click.Path(), help="Write everything, raw samples too.")
def time(model, batch, iterations, warm_up, json_path, **flags):
    """Time forward and backward of each layer of MODEL, a name or a TOML file.

    Medians of iterations on random images, with the optimizer of the model's recipe and without an exchange of
    gradients; under mpirun all ranks compute at once, and the slowest counts for a layer. docs/slow.md explains the
    columns.
    """
    options = {key: value for key, value in {"batch": batch, **flags}.items() if value is not None}
    return in_world(lambda transport: _time(transport, model, options, iterations, warm_up, json_path))


def _time(transport: Transport, name: str, options: dict, iterations: int, warm_up: int, json_path: str | None) -> None:
    config, model = together(transport, lambda: _asked(transport.size, name, options))
    agree(transport, {"model file": model.text, **plugin.facts(), **options})
    paths = OutputPaths(json_path)
    on_root(transport, paths.check)
    values, names = config.values(), ("model", "batch", "dtype", "precision", "ops", "optimizer")
    header = make_header(transport, START) | {name: values[name] for name in names}
    header |= {"iterations": iterations, "warm_up": warm_up}
    graph = model.graph()
    device = open_device(config, bare(transport))
    ops = device.ops
    header["device"] = ops.describe()
    if transport.rank == 0:
        echo(*_header_lines(header))
    alone = without_exchange(config, graph, transport.size, warm_up + iterations)
    data = read_data(alone, model, device.transport)
    training = together(
        device.transport, lambda: assemble(alone, model, data, device.transport, ops, stop=lambda: False)
    )
    with closing(training):
        whole = iteration_times(training)[warm_up:]
        header["peak_bytes"] = max(transport.gather_json(peak_bytes()))
        training.worker.passes.forget()  # the layers have memory of their own
        with training.batches(transport, 0, ENDLESS) as batches:
            layer_bench = together(transport, lambda: _layer_bench(config, graph, training, batches))
            take_turns(transport, layer_bench.iterate, compiles=ops.records)
            peaks = measure_peaks(transport, ops)
            measure_layers(transport, layer_bench, keys_of(graph), warm_up)
            samples = measure_layers(transport, layer_bench, keys_of(graph), iterations) | {(ITERATION, ""): whole}
    header["held_bytes"] = layer_bench.held_bytes
    header |= {"peak_flops_per_s": peaks.flops_per_s, "peak_bytes_per_s": peaks.bytes_per_s}
    rows = layer_rows(graph, samples, config.run.batch, config.device.dtype, peaks, layer_bench.ways)
    total = totals(rows, samples, config.run.batch, transport.size)
    if transport.rank == 0:
        if is_live(sys.stdout, os.environ):
            print_whole(layer_table(rows, total, framed=True))
        else:
            echo(*plain_lines(layer_table(rows, total)))
        echo(*summary_lines(total, header))
    content = {"header": header, "rows": rows, "totals": total}
    on_root(transport, lambda: paths.write(lambda: json_text(content)))


def _asked(ranks: int, name: str, options: dict):
    """Return (configuration, model). Raises UsageError."""
    model = spec.load_model(name)
    config = resolve(recipe_layer(model.name, model.recipe), ("flags", {**options, "model": model.name}))
    check_options(config)
    if config.run.batch < ranks:
        raise UsageError(f"--batch {config.run.batch} is smaller than the number of ranks, {ranks}; use a larger one")
    return config, model


def _layer_bench(config, graph, training: Assembly, batches: Batches):
    """Return the network on this rank's part of each batch. Raises UsageError."""
    start, stop = training.division.cut(config.run.batch, training.transport.rank)
    hyper, inputs = config.optimizer, partial(_inputs, training.worker.passes.feed, batches)
    loss, make = make_loss(config.model), lambda spans: make_optimizer(config.optimizer.optimizer, spans, hyper)
    return LayerBench(training.ops, graph, training.arena, stop - start, config.run.batch, make, loss, inputs)


def _inputs(feed: DeviceInput, batches: Batches, space: Workspace):
    """Bring one batch after another to the device, and the following one ahead, as training does."""
    for batch in batches:
        arrays = feed.load(space, batch, 0, len(batch.labels))
        following = batches.peek()
        if following is not None:
            feed.ahead(following)
        yield arrays
        feed.arrive(batch)


def _header_lines(header: dict) -> list[str]:
    examples, ranks = plural(header["batch"], "example"), plural(header["ranks"], "rank")
    timed, first = plural(header["iterations"], "iteration"), header["warm_up"] + 1
    crowd = f"; {header['crowded']}: times include the scheduler's" if header["crowded"] else ""
    where = f"{header['dtype']}, {header['ops']}, {header['device']}"
    return [
        f"ringtrain {header['ringtrain']} time {header['model']}: {examples} on {ranks}, {where}",
        f"medians of {timed} after {first}; cores by rank: {' | '.join(header['binding'])}{crowd}",
    ]
