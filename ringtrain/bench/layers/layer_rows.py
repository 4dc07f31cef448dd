"""The measurements of a net's layers as rows of figures, and as text."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import numpy as np
from rich.table import Table
from rich.text import Text

from ringtrain.bench.layers.layers import BACKWARD, BETWEEN, FORWARD, INPUT, ITERATION, LOSS, UPDATE, Key, Peaks
from ringtrain.humanize import RATE, format_bytes, format_rate, plural
from ringtrain.nn import graph_checks, shapes, subgraphs
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node
from ringtrain.show.tables import Column, add_columns, cell, framed_table, plain_table


def _milli(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.1f}"


COLUMNS = (
    Column("layer", "layer", left=True),
    Column("kind", "kind", left=True),
    Column("way", "way", left=True),
    Column("forward_s", "forward", "ms", _milli, none=""),
    Column("backward_s", "backward", "ms", _milli, none=""),
    Column("share", "share", "%", "{:.1f}", scale=100),
    Column("forward_flops_per_s", "forward", "GFLOP/s", _giga, none=""),
    Column("backward_flops_per_s", "backward", "GFLOP/s", _giga, none=""),
    Column("peak_share", "peak", "%", "{:.0f}", scale=100, none=""),
    Column("exchange_bytes", "exchange", "bytes", lambda nbytes: f"{nbytes:,}" if nbytes else ""),
)
NO_FIGURES = {
    "layer": "",
    "kind": "",
    "way": "",
    "fully_connected": False,
    "parameters": 0,
    "forward_s": None,
    "backward_s": None,
    "flops": 0,
    "forward_flops_per_s": None,
    "backward_flops_per_s": None,
    "peak_share": None,
    "exchange_bytes": 0,
    "forward_samples_s": [],
    "backward_samples_s": [],
}
BAR = 12  # characters of the largest share


def layer_rows(
    graph: Graph,
    samples: Mapping[Key, Sequence[float]],
    batch: int,
    dtype: str,
    peaks: Peaks | None = None,
    ways: Mapping[str, str] | None = None,
) -> list[dict]:
    """Return one row for each computed layer, then rows for the input, the loss, the update and the work between
    layers. Units: seconds; bytes of an exchange's buffer, before any schedule. ``fully_connected``: the layers that
    --fc pipeline gives ranks of their own. ``peak_share``: the least time of a layer by ``peaks``, over its own; None
    without. It counts a convolution as a direct one, so that Winograd's may be above 1. ``ways``: by layer.
    """
    descriptions = {row.layer: row for row in graph.describe(batch, dtype)}
    needing = graph_checks.gradients_needed(graph.plan, graph.shapes)
    rows = [_layer(node, graph, descriptions, needing, samples, batch) for node in graph.plan]
    rows = [row | {"way": (ways or {}).get(row["layer"], "")} for row in rows]
    if peaks is not None:
        item = np.dtype(dtype).itemsize
        rows = [
            row | {"peak_share": _peak_share(node, graph, row, needing, batch, item, peaks)}
            for node, row in zip(graph.plan, rows, strict=True)
        ]
    for start in subgraphs.fc_starts(graph)[:1]:
        rows[start:] = [{**row, "fully_connected": True} for row in rows[start:]]
    for name in (INPUT, LOSS, UPDATE, BETWEEN):  # counts as backward
        times = list(samples[name, ""])
        rows.append(NO_FIGURES | {"layer": name, "backward_s": statistics.median(times), "backward_samples_s": times})
    whole = sum(_seconds(row) for row in rows)
    return [{**row, "share": _seconds(row) / whole if whole else 0.0} for row in rows]


def _seconds(row: dict) -> float:
    return sum(row[key] or 0.0 for key in ("forward_s", "backward_s"))


def _layer(node: Node, graph: Graph, descriptions: dict, needing: set, samples, batch: int) -> dict:
    layer, folded = descriptions[node.name], [descriptions[name] for name in node.folded]
    flops = batch * (layer.flops + sum(row.flops for row in folded))
    forward, backward = (statistics.median(samples[node.name, phase]) for phase in (FORWARD, BACKWARD))
    products = _products(node, graph, needing)
    return NO_FIGURES | {
        "layer": node.name,
        "kind": "+".join(row.kind.partition(" ")[0] for row in (layer, *folded)),
        "parameters": layer.parameters,
        "forward_s": forward,
        "backward_s": backward if node.name in needing else None,
        "flops": flops,
        "forward_flops_per_s": flops / forward if flops and forward else None,
        "backward_flops_per_s": products * flops / backward if products and backward else None,
        "exchange_bytes": layer.gradient_bytes,
        "forward_samples_s": list(samples[node.name, FORWARD]),
        "backward_samples_s": list(samples[node.name, BACKWARD]),
    }


def _products(node: Node, graph: Graph, needing: set) -> int:
    """Return the number of products of backward for one of forward: one for the weights' gradient, and one for the
    input's gradient if it is needed. Zero for layers without products.
    """
    parameters = node.layer.parameters(graph_checks.input_shapes(node, graph.shapes))
    if not any(parameter.role == "weight" for parameter in parameters):
        return 0
    return 1 + bool(needing.intersection(node.inputs))


def _peak_share(node: Node, graph: Graph, row: dict, needing: set, batch: int, item: int, peaks: Peaks) -> float | None:
    """Every array moves once: forward reads inputs and weights, and writes the output; backward reads the output's
    gradient, writes the gradients of inputs and weights, and if there are weights reads them and the inputs. None
    for a layer that only views its input."""
    if not row["flops"]:
        return None
    inputs = item * batch * sum(map(shapes.element_count, graph_checks.input_shapes(node, graph.shapes)))
    output, weights = item * batch * shapes.element_count(graph.shapes[node.name]), item * row["parameters"]
    least, seconds = peaks.least_seconds(row["flops"], inputs + weights + output), row["forward_s"]
    if row["backward_s"]:
        written = inputs if needing.intersection(node.inputs) else 0
        read = output + (inputs + weights if weights else 0)
        flops = (_products(node, graph, needing) or 1) * row["flops"]
        least += peaks.least_seconds(flops, read + written + weights)
        seconds += row["backward_s"]
    return least / seconds if seconds else None


def totals(rows: Sequence[dict], samples: Mapping[Key, Sequence[float]], batch: int, ranks: int) -> dict:
    """Return the totals of one iteration. ``exchange_bytes`` is the buffer, ``sent_bytes`` the least that a rank sends
    to sum it. ``fc_…`` is of fully connected layers, both directions; shares are of all layers, None without such
    layers.
    """
    iteration = statistics.median(samples[ITERATION, ""])
    exchanged = sum(row["exchange_bytes"] for row in rows)
    layers = [row for row in rows if row["kind"]]
    fc = [row for row in layers if row["fully_connected"]]

    def share(amount: Callable[[dict], float]) -> float:
        return sum(map(amount, fc)) / sum(map(amount, layers))

    return {
        "forward_s": sum(row["forward_s"] for row in layers),
        "backward_s": sum(row["backward_s"] or 0.0 for row in layers),
        "iteration_s": iteration,
        "iteration_samples_s": list(samples[ITERATION, ""]),
        "images_per_s": batch / iteration,
        "forward_flops": sum(row["flops"] for row in layers),
        "exchange_bytes": exchanged,
        "sent_bytes": 2 * (ranks - 1) * exchanged // ranks,
        "fc_layers": [row["layer"] for row in fc],
        "fc_parameter_share": share(itemgetter("parameters")) if fc else None,
        "fc_time_share": share(_seconds) if fc else None,
    }


def layer_table(rows: Sequence[dict], total: dict, framed: bool = False) -> Table:
    """Return a row a layer, and the sums of the layers below. ``framed``: with lines and bars, for a terminal."""
    table = framed_table() if framed else plain_table()
    add_columns(table, COLUMNS)
    if framed:
        table.add_column("", no_wrap=True, min_width=BAR)
    most = max(row["share"] for row in rows)
    for row in rows:
        bar = Text("█" * round(BAR * row["share"] / most) if most else "", style="cyan")
        cells = [cell(column.text(row)) for column in COLUMNS] + [bar] * framed
        table.add_row(*cells, style=None if row["kind"] else "dim", end_section=row is rows[-1])
    times = (_milli(total["forward_s"]), _milli(total["backward_s"]))
    table.add_row("all layers", "", "", *times, "", "", "", "", f"{total['exchange_bytes']:,}", style="bold")
    return table


def summary_lines(total: dict, header: dict) -> list[str]:
    """Return the summary. ``header``: batch, ranks, held_bytes and peak_bytes, and the machine's peaks."""
    iteration, ranks = total["iteration_s"], header["ranks"]
    lines = [
        *_fc_lines(total),
        f"an iteration takes {_milli(iteration)} ms without its exchange: {total['images_per_s']:.4g} {RATE}",
        (
            f"memory of a rank: {format_bytes(header['held_bytes'])} of weights, gradients and optimizer, "
            f"{format_bytes(header['peak_bytes'])} at most in all"
        ),
    ]
    if "peak_flops_per_s" in header:
        flops, copied = header["peak_flops_per_s"], header["peak_bytes_per_s"]
        lines.append(
            f"peak of {plural(ranks, 'rank')}: {_giga(flops)} GFLOP/s in a large product, {format_rate(copied)} in a "
            "large copy"
        )
    if ranks > 1:
        lines.append(
            f"to exchange {format_bytes(total['exchange_bytes'])} a rank sends at least "
            f"{format_bytes(total['sent_bytes'])}: it takes as long as all else at "
            f"{format_rate(total['sent_bytes'] / iteration)}"
        )
    return lines


def _fc_lines(total: dict) -> list[str]:
    """Return the line on fully connected layers, of a network that has them."""
    if not total["fc_layers"]:
        return []
    layers = " to ".join(dict.fromkeys([total["fc_layers"][0], total["fc_layers"][-1]]))
    parameters, time = total["fc_parameter_share"], total["fc_time_share"]
    return [
        f"fully connected layers, {layers}: {parameters:.1%} of the parameters, {time:.1%} of the time of all layers"
    ]
