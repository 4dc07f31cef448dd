"""The time of each layer: what is timed, what is counted, and how it is said."""

import re

import numpy as np
import pytest

from ringtrain.bench.layers import layers as peaks
from ringtrain.bench.layers.layer_rows import COLUMNS, layer_rows, layer_table, summary_lines, totals
from ringtrain.bench.layers.layers import (
    BACKWARD,
    BETWEEN,
    FORWARD,
    INPUT,
    ITERATION,
    LOSS,
    UPDATE,
    LayerBench,
    Peaks,
    Stopwatch,
    TimedLayer,
    keys_of,
    measure_layers,
    measure_peaks,
)
from ringtrain.config.record import OptimizerConfig
from ringtrain.memory.arena import Arena
from ringtrain.memory.workspace import Workspace
from ringtrain.nn import spec
from ringtrain.nn.base import Pass
from ringtrain.nn.initial import initialise
from ringtrain.nn.layers import ReLU
from ringtrain.nn.losses import LOSSES
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.catalogue import OPTIMIZERS, make_optimizer
from ringtrain.show.tables import plain_lines
from tests.fakes.fake_gpu import FakeGpuOps
from tests.loopback.world import LoopbackWorld
from tests.says import says

# The pool before the first weights has no backward; ``relu`` has two readers' gradients to add; ``sum`` is in ``norm``.
NET = """
input = { shape = [8, 8, 3] }
layers = [
  { name = "pool", kind = "MaxPool", kernel = 2, stride = 2 },
  { name = "conv", kind = "Conv2D", channels = 4, kernel = 3, pad = 1 },
  { name = "relu", kind = "ReLU" },
  { name = "next", kind = "Conv2D", channels = 4, kernel = 1, bias = false },
  { name = "norm", kind = "BatchNorm" },
  { name = "sum", kind = "Add", inputs = ["norm", "relu"] },
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout" },
  { name = "out", kind = "Linear", units = 5 },
]
"""
BATCH, HYPER = 6, OptimizerConfig(momentum=0.9, weight_decay=0.1)
ONE_RANK = {"ranks": 1, "held_bytes": 0, "peak_bytes": 0}


@pytest.fixture
def graph():
    return spec.parse_model(NET, "net").graph()


def layer_bench_of(graph, ops=None, count=BATCH, optimizer="sgd", loss="ce"):
    """A bench of layers with the same examples in each iteration."""
    ops, loss, random = ops or make_ops("reference", "float64"), LOSSES[loss](), np.random.default_rng(0)
    form, classes = loss.labels_of(graph.shapes[graph.output])
    x, labels = random.standard_normal((count, *graph.input_shape)), random.random((count, *form.shape))
    if classes is not None:
        labels = (labels * classes).astype(np.int32)
    batch = ops.from_host(x.astype(ops.active)), ops.from_host(labels), ops.from_host(np.arange(count))

    def inputs(space):
        while True:
            yield batch

    arena = Arena(lambda n, dtype: ops.zeros((n,), dtype), graph.parameters(), ops.dtype)
    initialise(arena, ops, 0)
    return LayerBench(
        ops, graph, arena, count, BATCH, lambda spans: make_optimizer(optimizer, spans, HYPER), loss, inputs
    )


def samples_of(graph, **known):
    """One second for every key, but for those known: ``conv_forward=[1, 2, 9]``."""
    known_values = {tuple(key.rsplit("_", 1)) if "_" in key else (key, ""): values for key, values in known.items()}
    return {key: known_values.get(key, [1.0, 1.0, 1.0]) for key in keys_of(graph)}


def test_every_layer_is_timed_once_in_each_direction_and_a_device_is_waited_for(graph):
    seconds = layer_bench_of(graph).iterate()
    untimed = {key for key in keys_of(graph) if key not in seconds}
    assert untimed == {("pool", BACKWARD)}
    assert set(seconds) <= set(keys_of(graph))
    assert all(value > 0 for (name, _), value in seconds.items() if name != BETWEEN)
    inside = sum(value for (name, _), value in seconds.items() if name != ITERATION)
    assert inside == pytest.approx(seconds[ITERATION, ""])
    # Nothing is queued when the clock is looked at.
    ops = FakeGpuOps()
    watch = Stopwatch(ops)
    layer = TimedLayer("relu", ReLU("relu"), watch)
    x = ops.from_host(np.ones((2, 3), np.float32))

    layer.forward(Pass(ops, Workspace(ops)), {}, [x])
    assert not ops.runtime.waiting()
    assert layer_bench_of(graph, FakeGpuOps(dtype="float64")).iterate().keys() == layer_bench_of(graph).iterate().keys()
    for node in graph.plan:
        timed = TimedLayer(node.name, node.layer, Stopwatch(make_ops("cpu")))
        assert (timed.adds, timed.factors) == (node.layer.adds, node.layer.factors)
    assert {node.layer.adds for node in graph.plan} == {False, True}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_iteration_computes_the_same(graph, optimizer):
    """The rate is 0: weights stay; running statistics alone move."""
    layer_bench = layer_bench_of(graph, optimizer=optimizer)
    before = layer_bench._arena.weights.copy()
    layer_bench.iterate()
    layer_bench.iterate()
    changed = before != layer_bench._arena.weights
    moved = {span.name for span in layer_bench._arena.spans if changed[span.start : span.stop].any()}
    assert moved == {"norm.mean", "norm.variance"}
    assert np.abs(layer_bench._arena.grads).max() > 0


def test_the_slowest_rank_counts(graph):
    class Clockwork:
        """Takes rank + 1 seconds for all but the loss, of which rank 0 has most."""

        def __init__(self, rank):
            self.rank = rank

        def iterate(self):
            return {key: float(self.rank + 1) for key in keys_of(graph)} | {(LOSS, ""): 5.0 - self.rank}

    def run(transport):
        assert measure_layers(transport, Clockwork(transport.rank), keys_of(graph), 0)[LOSS, ""] == []  # no warm-up
        return measure_layers(transport, Clockwork(transport.rank), keys_of(graph), 2)

    for samples in LoopbackWorld(3).run(run):
        assert samples["conv", FORWARD] == [3.0, 3.0]
        assert samples[LOSS, ""] == [5.0, 5.0]


def test_rows_are_medians_with_rates_and_shares_and_that_of_the_peak(graph):
    samples = samples_of(graph, conv_forward=[4.0, 2.0, 9.0], conv_backward=[8.0, 8.0, 1.0], pool_backward=[0.0] * 3)
    rows = {row["layer"]: row for row in layer_rows(graph, samples, BATCH, "float32")}
    assert list(rows) == ["pool", "conv", "next", "norm", "flat", "drop", "out", INPUT, LOSS, UPDATE, BETWEEN]
    conv = rows["conv"]
    assert (conv["kind"], conv["forward_s"], conv["backward_s"]) == ("Conv2D+ReLU", 4.0, 8.0)
    # 4x4 pixels, 4 features of 3·3·3 products, a bias and a ReLU each; nothing before it is trained, so no dx
    flops = BATCH * 4 * 4 * 4 * (2 * 27 + 1 + 1)
    assert conv["flops"] == flops
    assert (conv["forward_flops_per_s"], conv["backward_flops_per_s"]) == (flops / 4, flops / 8)
    assert rows["next"]["backward_flops_per_s"] == 2 * rows["next"]["flops"]
    assert rows["pool"]["backward_s"] is None and rows["pool"]["backward_flops_per_s"] is None
    assert rows["norm"]["backward_flops_per_s"] is None and rows["flat"]["forward_flops_per_s"] is None
    assert conv["exchange_bytes"] == 4 * (27 * 4 + 4)
    assert (rows["norm"]["kind"], rows["norm"]["exchange_bytes"]) == ("BatchNorm+Add", 4 * 16)
    assert rows["norm"]["flops"] == BATCH * 4 * 4 * 4 * (2 + 1)
    whole = 12 + 1 + 5 * 2 + 4  # conv, pool, the other layers, and what is apart
    assert conv["share"] == pytest.approx(12 / whole)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert conv["forward_samples_s"] == [4.0, 2.0, 9.0]
    # Products bound the convolution, where a copy takes no time; bytes bound the pool.
    samples = samples_of(graph, conv_backward=[3.0] * 3, pool_backward=[0.0] * 3)
    conv, pixels = 4 * 4 * 4 * (2 * 27 + 1 + 1), 4 * 4
    fast = {row["layer"]: row for row in layer_rows(graph, samples, BATCH, "float32", Peaks(BATCH * conv, 1e30))}
    assert fast["conv"]["peak_share"] == pytest.approx(2 / 4)  # no dx: as many products backward as forward
    assert fast["flat"]["peak_share"] is None and fast["loss"]["peak_share"] is None
    slow = {row["layer"]: row for row in layer_rows(graph, samples, BATCH, "float32", Peaks(1e30, 4.0 * BATCH))}
    assert slow["pool"]["peak_share"] == 8 * 8 * 3 + pixels * 3  # its backward never runs
    forward, backward = pixels * (3 + 4) + (27 * 4 + 4) / BATCH, pixels * (3 + 4) + 2 * (27 * 4 + 4) / BATCH
    assert slow["conv"]["peak_share"] == pytest.approx((forward + backward) / 4)


def test_peaks_are_of_all_ranks_by_the_slowest(monkeypatch):
    rates = {0: (5.0, 7.0), 1: (4.0, 8.0)}

    def run(transport):
        monkeypatch.setattr(peaks, "_product_rate", lambda rank: rates[rank][0])
        monkeypatch.setattr(peaks, "_copy_rate", lambda rank: rates[rank][1])
        return measure_peaks(transport, transport.rank)

    assert LoopbackWorld(2).run(run) == [Peaks(8.0, 14.0)] * 2
    assert Peaks(8.0, 14.0).least_seconds(16.0, 42.0) == 3
    monkeypatch.undo()
    monkeypatch.setattr(peaks, "COPIED", 1 << 12)
    monkeypatch.setattr(peaks, "SIDE", 16)
    (measured,) = LoopbackWorld(1).run(lambda transport: measure_peaks(transport, make_ops("reference", "float32")))
    assert measured.flops_per_s > 0 and measured.bytes_per_s > 0


def test_the_way_of_a_convolution_is_what_the_operations_say(graph):
    ops = make_ops("reference", "float64")
    ops.conv2d_variant = lambda x, w, geometry: f"{x} {w} {geometry.kernel}"
    layer_bench = layer_bench_of(graph, ops)
    assert layer_bench.ways["conv"] == f"{(BATCH, 4, 4, 3)} {(3, 3, 3, 4)} 3" and layer_bench.ways["pool"] == ""
    rows = layer_rows(graph, samples_of(graph), BATCH, "float64", ways=layer_bench.ways)
    assert [row["way"] for row in rows] == [layer_bench.ways.get(row["layer"], "") for row in rows]


def test_totals_and_shares_of_fully_connected_layers_which_are_named_with_what_belongs_to_them(graph):
    samples = samples_of(graph, iteration=[30.0, 20.0, 40.0], pool_backward=[0.0] * 3)
    rows = layer_rows(graph, samples, BATCH, "float64")
    total = totals(rows, samples, BATCH, ranks=4)
    assert (total["forward_s"], total["backward_s"], total["iteration_s"]) == (7.0, 6.0, 30.0)
    assert total["images_per_s"] == BATCH / 30
    conv, following, norm, out = 27 * 4 + 4, 4 * 4, 4 * 4, 64 * 5 + 5
    assert total["exchange_bytes"] == 8 * (conv + following + norm + out)
    assert total["sent_bytes"] == total["exchange_bytes"] * 2 * 3 // 4
    assert total["forward_flops"] == sum(row["flops"] for row in rows)
    # Those that --fc pipeline places, in both directions; loss, update and the work between layers count for none.
    samples = samples_of(graph, out_forward=[2.0] * 3, out_backward=[4.0] * 3, pool_backward=[0.0] * 3)
    rows = layer_rows(graph, samples, BATCH, "float32")
    assert [row["layer"] for row in rows if row["fully_connected"]] == ["out"]
    total = totals(rows, samples, BATCH, 1)
    conv, following, norm, out = 27 * 4 + 4, 4 * 4, 2 * 4, 64 * 5 + 5  # running statistics are not counted
    parameters, time = out / (conv + following + norm + out), 6 / (6 + 1 + 5 * 2)  # out, pool, five others
    assert (total["fc_layers"], total["fc_parameter_share"], total["fc_time_share"]) == (["out"], parameters, time)
    assert summary_lines(total, ONE_RANK)[0] == says("out", f"{parameters:.1%}", f"{time:.1%}")
    graph = spec.load_model("alexnet").graph()
    rows = layer_rows(graph, samples_of(graph), BATCH, "float32")
    assert [row["layer"] for row in rows if row["fully_connected"]] == ["fc6", "drop6", "fc7", "drop7", "fc8"]
    total = totals(rows, samples_of(graph), BATCH, 1)
    assert total["fc_parameter_share"] == 58_631_144 / 60_965_224
    line = summary_lines(total, ONE_RANK)[0]
    assert line.startswith("fully connected layers, fc6 to fc8: 96.2% of the parameters, ")
    layers = '[{ name = "conv", kind = "Conv2D", channels = 4, kernel = 3 }, { name = "mean", kind = "GlobalAvgPool" }]'
    graph = spec.parse_model(f"input = {{ shape = [8, 8, 3] }}\nlayers = {layers}", "net").graph()
    total = totals(layer_rows(graph, samples_of(graph), BATCH, "float32"), samples_of(graph), BATCH, 1)
    assert (total["fc_layers"], total["fc_parameter_share"], total["fc_time_share"]) == ([], None, None)
    lines = summary_lines(total, ONE_RANK)
    assert not any(re.search(says("fully", "connected"), line) for line in lines)


def test_text_is_aligned_and_its_last_lines_speak_of_the_exchange_where_there_is_one(graph):
    samples = samples_of(graph, pool_backward=[0.0] * 3)
    rows = layer_rows(graph, samples, BATCH, "float32")
    total = totals(rows, samples, BATCH, 1)
    lines = plain_lines(layer_table(rows, total))
    assert lines[0].split() == [column.title for column in COLUMNS]
    assert lines[1].split() == ["ms", "ms", "%", "GFLOP/s", "GFLOP/s", "%", "bytes"]
    assert len({len(line) for line in lines if line.startswith(("layer", "conv", "next", "norm", "out"))}) == 1
    assert len(lines) == 2 + len(rows) + 1
    assert lines[2].split() == ["pool", "MaxPool", "1000.000", "5.9", "0.0"]
    assert lines[-1].startswith("all layers") and lines[-1].split()[2:4] == ["7000.000", "6000.000"]
    total = {"iteration_s": 0.5, "images_per_s": 12.0, "exchange_bytes": 1 << 20, "sent_bytes": 1 << 20}
    total |= {"fc_layers": []}
    header = {"ranks": 1, "held_bytes": 3 << 20, "peak_bytes": 5 << 20}
    one = summary_lines(total, header)
    assert one == [
        "an iteration takes 500.000 ms without its exchange: 12 examples/s",
        "memory of a rank: 3 MiB of weights, gradients and optimizer, 5 MiB at most in all",
    ]
    assert summary_lines(total, {**header, "ranks": 2})[2] == (says("1 MiB", "2.097 MB/s"))


@pytest.mark.parametrize("loss", ["ce", "mse", "bce"])
def test_a_net_that_ends_in_an_image_has_labels_of_each_pixel(loss):
    text = 'input = { shape = [8, 8, 3] }\nlayers = [{ name = "c", kind = "Conv2D", channels = 4, kernel = 3 }]'
    layer_bench = layer_bench_of(spec.parse_model(text, "net").graph(), loss=loss)
    assert layer_bench.iterate().keys() >= {("c", FORWARD), ("c", BACKWARD), (LOSS, "")}
    assert layer_bench._totals[2] == BATCH * 36 * (1 if loss == "ce" else 4)  # labelled elements
