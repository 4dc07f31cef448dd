"""Every layer's backward is the derivative of its forward: random directions, float64."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from nn_support import TOLERANCE, bound_arena, make_pass, reference, slope

from ringtrain.errors import ModelError
from ringtrain.nn.base import Fill, Parameter
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.conv_columns import Conv1D, Conv3D, ConvTranspose2D
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import INPUT, Node
from ringtrain.nn.layers import GELU, Add, Concat, Dropout, Flatten, Linear, ReLU, Sigmoid, SiLU, Tanh
from ringtrain.nn.norm import BatchNorm, GroupNorm, LayerNorm
from ringtrain.nn.pool import AvgPool, GlobalAvgPool, MaxPool, Upsample
from ringtrain.nn.sequence import Attention, ClassToken, Embedding, FirstToken, PositionEmbedding
from ringtrain.ops.catalogue import make_ops
from tests.ops.cases import CONVOLUTIONS, DEPTHWISE_LINES, POOLS, UPSAMPLED
from tests.says import says

SEQUENCE, LINE, IMAGE, VOLUME = [(5, 12)], [(9, 4)], [(6, 5, 4)], [(4, 5, 3, 4)]
CASES = [
    (Conv2D("c", 6, 3), IMAGE),
    (Conv2D("c", 6, 3, stride=2, pad=1, groups=2), IMAGE),
    (Conv2D("c", 3, 2, pad=2, bias=None, relu=True), IMAGE),
    (Conv2D("c", 4, 3, pad=1, relu=True), IMAGE),
    (Conv2D("c", 4, 3, pad=1, groups=4, relu=True), IMAGE),
    (Conv1D("c", 6, 3, pad=1), LINE),
    (Conv1D("c", 6, 3, stride=2, groups=2, relu=True), LINE),
    (Conv1D("c", 5, 1, bias=None), LINE),
    (Conv1D("c", 4, 5, pad=2, groups=4, bias=None), LINE),
    (Conv1D("c", 4, 3, stride=2, groups=4, relu=True), LINE),
    (Conv1D("c", 8, 3, pad=1, groups=4), LINE),
    (Conv3D("c", 3, 3, pad=1, relu=True), VOLUME),
    (Conv3D("c", 6, 2, stride=2, pad=1, groups=2), VOLUME),
    (ConvTranspose2D("c", 3, 2, stride=2), IMAGE),
    (ConvTranspose2D("c", 3, 3, stride=2, pad=1, output_pad=1, relu=True), IMAGE),
    (ConvTranspose2D("c", 2, 3, bias=None), IMAGE),
    (Upsample("u", 2), IMAGE),
    (Upsample("u", 3, mode="bilinear"), IMAGE),
    (Linear("l", 7), [(9,)]),
    (Linear("l", 7, bias=None, relu=True), [(9,)]),
    (Linear("l", 7, relu=True), [(9,)]),
    (Linear("l", 7, relu=True), SEQUENCE),
    (Linear("l", 7, bias=None), SEQUENCE),
    (ReLU("r"), IMAGE),
    (ReLU("r"), SEQUENCE),
    (Sigmoid("s"), IMAGE),
    (Tanh("t"), [(9,)]),
    (SiLU("s"), SEQUENCE),
    (GELU("g"), SEQUENCE),
    (GELU("g", approximate="tanh"), SEQUENCE),
    (ReLU("r"), [(9,)]),
    (MaxPool("p", 2, 2), IMAGE),
    (MaxPool("p", 3, 2, ceil=True), IMAGE),
    (MaxPool("p", 3, 2, pad=1), IMAGE),
    (AvgPool("p", 3, 2, ceil=True), IMAGE),
    (AvgPool("p", 3, 1, pad=1), IMAGE),
    *((kind("p", 3, 2, pad=1, ceil=True), shape) for kind in (MaxPool, AvgPool) for shape in (LINE, VOLUME)),
    (AvgPool("p", 2, 2), LINE),
    (GlobalAvgPool("g"), IMAGE),
    (GlobalAvgPool("g"), SEQUENCE),
    (GlobalAvgPool("g"), LINE),
    (GlobalAvgPool("g"), VOLUME),
    (BatchNorm("b", ghost=2), IMAGE),  # of 5 examples: ghosts of 2, 2 and 1
    (BatchNorm("b", ghost=8), IMAGE),
    (BatchNorm("b", ghost=3, relu=True), IMAGE),
    (BatchNorm("b", ghost=3), [(9,)]),
    (LayerNorm("n"), [(9,)]),
    (LayerNorm("n", eps=0.1), SEQUENCE),
    (LayerNorm("n"), IMAGE),
    (GroupNorm("n", 2), IMAGE),
    (GroupNorm("n", 4, eps=0.1), SEQUENCE),
    (GroupNorm("n", 3), [(9,)]),
    (Embedding("e", 7, 3), [(6,)]),
    (PositionEmbedding("p"), SEQUENCE),
    *((ClassToken("t"), shape) for shape in (SEQUENCE, IMAGE)),
    (FirstToken("f"), SEQUENCE),
    (Attention("a", 3), SEQUENCE),
    (Attention("a", 2, causal=True, bias=False), SEQUENCE),
    (BatchNorm("b", ghost=2), LINE),
    (BatchNorm("b", ghost=3, relu=True), VOLUME),
    (Dropout("d", rate=0.4), IMAGE),
    (Dropout("d", rate=0.4), SEQUENCE),
    (Dropout("d", rate=0.0), IMAGE),
    (Flatten("f"), IMAGE),
    (Add("a"), IMAGE * 2),
    (Add("a", relu=True), IMAGE * 3),
    (Concat("j"), [(6, 5, 4), (6, 5, 1), (6, 5, 2)]),
    (Concat("j"), [(3,), (5,)]),
    (Add("a"), SEQUENCE * 2),
    (Concat("j"), [(5, 3), (5, 4)]),
]
# Further geometries of the operations, as their own tests have them.
GEOMETRIES = [
    (Conv2D("c", k, g.kernel, stride=g.stride, pad=g.pad, groups=g.groups, relu=relu), [(h, w, c)])
    for (name, (h, w, c, k, g)), relu in product(CONVOLUTIONS.items(), (False, True))
    if name not in ("long rows", "many tiles", "depthwise, wide")
]
GEOMETRIES += [
    (Conv1D("c", channels, g.kernel, stride=g.stride, pad=g.pad, groups=channels, relu=relu), [(length, channels)])
    for (length, channels, g), relu in product(DEPTHWISE_LINES, (False, True))
]
GEOMETRIES += [
    (kind("p", g.kernel, g.stride, pad=g.pad, ceil=g.ceil), [(7, 9, 3)])
    for kind, g in product((MaxPool, AvgPool), POOLS.values())
]
GEOMETRIES += [
    (Upsample("u", scale, mode=mode), [(h, w, c)])
    for (h, w, c, scale), mode in product(UPSAMPLED, ("nearest", "bilinear"))
]
COUNT = 5


def label(case):
    return f"{type(case[0]).__name__}-{case[0]!r}"[:90]


class Bench:
    """One layer, with random inputs, weights and output gradient."""

    def __init__(self, layer, inputs, count=COUNT):
        self.layer, self.ops, self.inputs = layer, reference(), inputs
        random = self.random = np.random.default_rng(6)
        self.moves = not isinstance(layer, Embedding)  # whether an input may be any number
        self.xs = [random.standard_normal((count, *shape)) for shape in inputs]
        if not self.moves:
            self.xs = [np.floor(layer.entries * random.random(x.shape)) for x in self.xs]
        self.parameters = layer.parameters(inputs)
        self.weights = {p.name: random.uniform(0.5, 1.5, p.shape) for p in self.parameters}
        self.r = random.standard_normal((count, *layer.shape(inputs)))

    def up(self, arrays: dict) -> dict:
        return {name: self.ops.from_host(array.copy()) for name, array in arrays.items()}

    def forward(self, xs, weights, ctx=None):
        ctx = ctx or make_pass(self.ops, len(self.r))
        return ctx, *self.layer.forward(ctx, self.up(weights), [self.ops.from_host(x.copy()) for x in xs])

    def value(self, xs, weights) -> float:
        return float(np.sum(self.ops.to_host(self.forward(xs, weights)[1]) * self.r))

    def backward(self, wanted=None, accumulate=False, grads=None):
        ctx, _, tape = self.forward(self.xs, self.weights)
        ctx.accumulate = accumulate
        grads = self.up(grads or {name: np.zeros_like(w) for name, w in self.weights.items()})
        wanted = wanted or [True] * len(self.xs)
        dy = self.ops.from_host(self.r.copy())
        dxs = self.layer.backward(ctx, self.up(self.weights), grads, dy, tape, wanted)
        host = [None if dx is None else self.ops.to_host(dx) for dx in dxs]
        return host, {name: self.ops.to_host(grad) for name, grad in grads.items()}

    def trained(self):
        return [p.name for p in self.parameters if p.role != "statistic"]


@pytest.mark.parametrize("case", CASES + GEOMETRIES, ids=label)
def test_the_output_has_its_shape_and_backward_is_the_derivative(case):
    bench = Bench(*case)
    assert bench.forward(bench.xs, bench.weights)[1].shape == (COUNT, *bench.layer.shape(bench.inputs))
    dxs, grads = bench.backward()
    for _ in range(3):
        ds = [bench.moves * bench.random.standard_normal(x.shape) for x in bench.xs]
        dw = {name: bench.random.standard_normal(bench.weights[name].shape) for name in bench.trained()}

        def value(step, ds=ds, dw=dw):
            weights = {name: w + step * dw.get(name, 0) for name, w in bench.weights.items()}
            return bench.value([x + step * d for x, d in zip(bench.xs, ds, strict=True)], weights)

        expected = slope(value)
        parts = [np.sum(dx * d) for dx, d in zip(dxs, ds, strict=True)]
        measured = sum(parts) + sum(np.sum(grads[name] * d) for name, d in dw.items())
        assert abs(measured - expected) <= TOLERANCE * abs(expected)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_no_example_gives_zero_gradients(case):
    bench = Bench(*case, count=0)
    garbage = {name: np.full_like(w, 7.0) for name, w in bench.weights.items()}
    dxs, grads = bench.backward(grads=garbage)
    assert all(dx.shape == (0, *shape) for dx, shape in zip(dxs, case[1], strict=True))
    assert all(not grad.any() for grad in grads.values())


# The graph does not visit a layer of which nothing at all is wanted.
PARTLY_WANTED = [c for c in CASES if c[0].parameters(c[1]) or len(c[1]) > 1]


@pytest.mark.parametrize("case", PARTLY_WANTED, ids=label)
def test_unwanted_inputs_get_none_and_gradients_are_added_to_where_asked(case):
    bench = Bench(*case)
    wanted = [False] * (len(bench.inputs) - 1) + [len(bench.inputs) > 1]
    dxs, grads = bench.backward(wanted=wanted)
    all_dxs, all_grads = bench.backward()
    for dx, whole, want in zip(dxs, all_dxs, wanted, strict=True):
        np.testing.assert_array_equal(dx, whole) if want else np.testing.assert_equal(dx, None)
    _, twice = bench.backward(accumulate=True, grads=grads)
    for name in grads:
        np.testing.assert_array_equal(grads[name], all_grads[name])
        np.testing.assert_allclose(twice[name], 2 * grads[name], rtol=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if len(c[1]) > 1], ids=label)
def test_gradients_of_inputs_share_no_memory(case):
    bench = Bench(*case)
    ctx, _, tape = bench.forward(bench.xs, bench.weights)
    dxs = bench.layer.backward(ctx, {}, {}, bench.ops.from_host(bench.r.copy()), tape, [True] * len(bench.xs))
    before = [bench.ops.to_host(dx) for dx in dxs]
    bench.ops.fill(dxs[0], 99)
    for dx, kept in zip(dxs[1:], before[1:], strict=True):
        np.testing.assert_array_equal(bench.ops.to_host(dx), kept)


COLUMNS = [case for case in CASES if isinstance(case[0], Conv1D | Conv3D | ConvTranspose2D)]
COLUMNS = [(layer, inputs) for layer, inputs in COLUMNS if (getattr(layer, "groups", 1), layer.channels) != (4, 4)]


@pytest.mark.parametrize("case", COLUMNS, ids=label)
def test_a_matrix_of_windows_for_some_examples_at_a_time_gives_the_same(case, monkeypatch):
    bench = Bench(*case)
    (whole, dws), y = bench.backward(), bench.forward(bench.xs, bench.weights)[1].copy()
    monkeypatch.setattr(bench.ops, "columns_at_once", 1)
    rows, linear_back = [], bench.ops.linear_back
    monkeypatch.setattr(
        bench.ops, "linear_back", lambda x, *more, **rest: rows.append(len(x)) or linear_back(x, *more, **rest)
    )
    (apart, grads), again = bench.backward(), bench.forward(bench.xs, bench.weights)[1]
    assert len(rows) == COUNT * getattr(bench.layer, "groups", 1)  # an example at a time
    np.testing.assert_allclose(again, y, rtol=1e-13)
    np.testing.assert_allclose(apart[0], whole[0], rtol=1e-12, atol=1e-14)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, dws[name], rtol=1e-12)


def test_every_kind_is_checked():
    assert {type(layer) for layer, _ in CASES} == set(LAYERS.values())


def test_batch_norm_shares_sum_to_the_batch_average():
    """Two ranks with 4 and 2 examples, ghosts of 2: what they hand in sums to the mean over all ghosts."""
    layer, ops = BatchNorm("b", ghost=2), reference()
    x = np.random.default_rng(1).standard_normal((6, 3, 3, 2))
    total = np.zeros((2, 2))
    for rows in (slice(0, 4), slice(4, 6)):
        ctx = make_pass(ops, len(x[rows]), total=6)
        weights = {name: ops.from_host(np.ones(2)) for name in ("gamma", "beta", "mean", "variance")}
        grads = {name: ops.zeros((2,)) for name in weights}
        _, tape = layer.forward(ctx, weights, [ops.from_host(x[rows])])
        layer.backward(ctx, weights, grads, ops.zeros(x[rows].shape), tape, [False])
        total += [ops.to_host(grads["mean"]), ops.to_host(grads["variance"])]
    ghosts = x.reshape(3, -1, 2)
    np.testing.assert_allclose(total[0], ghosts.mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(total[1], ghosts.var(1, ddof=1).mean(0), rtol=1e-12)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("inputs", [IMAGE, [(9,)]])
def test_the_whole_batch_of_one_rank_is_one_ghost_batch(inputs, relu):
    bench = Bench(BatchNorm("b", ghost=8, relu=relu), inputs)
    want, added = bench.backward(), []
    alone = make_pass(bench.ops, COUNT, add_over_ranks=lambda numbers: added.append(numbers.size))
    _, y, tape = bench.forward(bench.xs, bench.weights, alone)
    np.testing.assert_allclose(y, bench.forward(bench.xs, bench.weights)[1], rtol=1e-12, atol=1e-14)
    grads, C = bench.up(bench.weights), inputs[0][-1]
    (dx,) = bench.layer.backward(alone, bench.up(bench.weights), grads, bench.r.copy(), tape, [True])
    np.testing.assert_allclose(dx, want[0][0], rtol=1e-11, atol=1e-13)
    for name in want[1]:
        np.testing.assert_allclose(grads[name], want[1][name], rtol=1e-12, atol=1e-13)
    assert added == [2 * C + 1, 2 * C]
    # ranks meet in backward only where the gradient of the input is wanted
    _, _, tape = bench.forward(bench.xs, bench.weights, alone)
    assert bench.layer.backward(alone, bench.up(bench.weights), grads, bench.r.copy(), tape, [False]) == (None,)
    assert added[2:] == [2 * C + 1]


def test_batch_norm_evaluates_by_running_statistics():
    layer, ops = BatchNorm("b", eps=1e-3), reference()
    x = np.random.default_rng(1).standard_normal((4, 3))
    host = {"gamma": [1.0, 2, 3], "beta": [0.1, 0.2, 0.3], "mean": [1.0, 0, -1], "variance": [1.0, 4, 9]}
    weights = {name: ops.from_host(np.array(values)) for name, values in host.items()}
    y, _ = layer.forward(make_pass(ops, 4, training=False), weights, [ops.from_host(x)])
    gamma, beta, mean, var = (np.array(values) for values in host.values())
    np.testing.assert_allclose(ops.to_host(y), gamma * (x - mean) / np.sqrt(var + 1e-3) + beta, rtol=1e-12)


def test_dropout_is_the_same_for_an_example_at_any_place_and_differs_by_layer_and_key():
    ops, layer = reference(), Dropout("d", rate=0.5)
    x = np.ones((6, 50))
    whole, _ = layer.forward(make_pass(ops, 6), {}, [ops.from_host(x)])
    part, _ = layer.forward(make_pass(ops, 2, start=3), {}, [ops.from_host(x[:2])])
    np.testing.assert_array_equal(ops.to_host(whole)[3:5], ops.to_host(part))
    assert set(np.unique(ops.to_host(whole))) == {0.0, 2.0}

    def draw(name, key, training=True):
        ctx = make_pass(ops, 2, training=training)
        ctx.key = ops.from_host(np.array([key], np.uint64))
        return ops.to_host(Dropout(name).forward(ctx, {}, [ops.from_host(np.ones((2, 64)))])[0])

    assert (draw("a", 1) != draw("b", 1)).any()
    assert (draw("a", 1) != draw("a", 2)).any()
    np.testing.assert_array_equal(draw("a", 1), draw("a", 1))
    np.testing.assert_array_equal(draw("a", 1, training=False), np.ones((2, 64)))


def test_parameters_carry_fills_and_multipliers():
    weight, bias = Conv2D("c", 8, 3, groups=2).parameters([(6, 6, 4)])
    assert weight == Parameter("weight", (3, 3, 2, 8), Fill("he", 0.0, 18, 36), "weight")
    assert bias == Parameter("bias", (8,), Fill("constant"), "bias")
    roles = [(p.name, p.role, p.rate) for p in BatchNorm("b", rate=0.3, gamma=0.0).parameters([(6, 6, 4)])]
    assert roles == [
        ("gamma", "norm", 0.0),
        ("beta", "norm", 0.0),
        ("mean", "statistic", 0.3),
        ("variance", "statistic", 0.3),
    ]
    assert BatchNorm("b", gamma=0.0).parameters([(4,)])[0].fill == Fill("constant", 0.0)


def test_parameters_of_sequences_have_their_roles():
    """``decay_bias_norm = false`` and the optimizers' rules for biases go by these."""
    parameters = [(p.name, p.shape, p.role, p.fill) for p in Attention("a", 2).parameters([(5, 4)])]
    weight, zero = Fill("xavier", 0.0, 4, 12), Fill("constant")
    assert parameters == [
        ("qkv_weight", (4, 12), "weight", weight),
        ("qkv_bias", (12,), "bias", zero),
        ("out_weight", (4, 4), "weight", Fill("xavier", 0.0, 4, 4)),
        ("out_bias", (4,), "bias", zero),
    ]
    assert [p.name for p in Attention("a", 2, bias=False).parameters([(5, 4)])] == ["qkv_weight", "out_weight"]
    for layer in (LayerNorm("n"), GroupNorm("n", 2)):
        gamma, beta = layer.parameters([(5, 4)])
        assert (gamma, beta) == (
            Parameter("gamma", (4,), Fill("constant", 1.0), "norm"),
            Parameter("beta", (4,), Fill("constant", 0.0), "norm"),
        )
    for layer, inputs, shape in ((Embedding("e", 9, 4), [(5,)], (9, 4)), (PositionEmbedding("p"), [(5, 4)], (5, 4))):
        assert layer.parameters(inputs) == (Parameter("weight", shape, Fill("gaussian", 0.02), table=True),)


@pytest.mark.parametrize("number", [-1, 7, 2.5, np.nan, 1e30])
def test_a_number_that_is_no_entry_makes_the_layer_the_first_that_is_not_finite(number):
    """So the run ends with this layer's name; gradients pass such a number over."""
    layer, ops = Embedding("words", 7, 3), reference()
    x = np.array([[0, 6, number, 3]])
    graph = Graph([Node(layer, (INPUT,)), Node(GlobalAvgPool("mean"), ("words",))], (4,))
    bound_arena(graph, ops, 1)
    ctx = make_pass(ops, 1)
    _, tapes = graph.forward(ctx, ops.from_host(x))
    assert graph.first_nonfinite(ctx, tapes) == "words"
    assert np.isnan(tapes.outputs["words"]).any(axis=2).tolist() == [[False, False, True, False]]
    grads = {"weight": ops.from_host(np.full((7, 3), 9.0))}
    layer.backward(ctx, {}, grads, ops.from_host(np.ones((1, 4, 3))), x, [False])
    assert grads["weight"].sum(axis=1).tolist() == [3, 0, 0, 3, 0, 0, 3]


def test_more_entries_than_16_bits_can_name_are_refused():
    ops = SimpleNamespace(active=np.dtype("float16"))
    wanted = says("--precision", "'e'", 2050, "float16", 2048)
    with pytest.raises(ModelError) as error:
        Embedding("e", 2050, 3).forward(SimpleNamespace(ops=ops), {}, [np.zeros((1, 4))])
    assert str(error.value) == wanted


@pytest.mark.parametrize("layer", [LayerNorm("n"), GroupNorm("n", 3), Attention("a", 3), Attention("a", 2, True)])
def test_an_example_has_the_same_bits_whatever_shares_its_batch(layer):
    """On the CPU's kernels, whose products cut the batch into tiles."""
    ops, inputs = make_ops("cpu"), [(5, 12)]
    x = np.random.default_rng(2).standard_normal((40, 5, 12)).astype(np.float32)
    weights = {p.name: np.full(p.shape, 0.1, np.float32) for p in layer.parameters(inputs)}
    whole, _ = layer.forward(make_pass(ops, 40), weights, [x])
    for rows in (slice(0, 1), slice(7, 20)):
        part, _ = layer.forward(make_pass(ops, len(x[rows])), weights, [x[rows].copy()])
        assert part.tobytes() == whole[rows].tobytes()


def test_a_causal_place_does_not_see_those_behind_it():
    bench = Bench(Attention("a", 2, causal=True), [(6, 4)])
    _, y, _ = bench.forward(bench.xs, bench.weights)
    later = bench.xs[0].copy()
    later[:, 4:] += 1
    _, changed, _ = bench.forward([later], bench.weights)
    assert (changed[:, :4] == y[:, :4]).all() and (changed[:, 4:] != y[:, 4:]).any()


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (Conv2D("c", 20, 5), (28, 28, 1), 24 * 24 * 20 * (2 * 25 + 1)),
        (Conv2D("c", 8, 3, pad=1, groups=2, bias=None), (6, 6, 4), 6 * 6 * 8 * 2 * 9 * 2),
        (Conv1D("c", 8, 3, pad=1, groups=2), (9, 4), 9 * 8 * (2 * 3 * 2 + 1)),
        (Conv3D("c", 8, 2, bias=None), (3, 4, 5, 2), 2 * 3 * 4 * 8 * 2 * 8 * 2),
        (ConvTranspose2D("c", 8, 2, stride=2), (3, 5, 4), 15 * 4 * 2 * 4 * 8 + 6 * 10 * 8),
        (Linear("l", 10), (500,), 10 * (2 * 500 + 1)),
        (Linear("l", 10), (7, 500), 7 * 10 * (2 * 500 + 1)),
        (MaxPool("p", 2, 2), (24, 24, 20), 12 * 12 * 20 * 4),
        (Attention("a", 2), (7, 8), 7 * 8 * (2 * 8 + 1) * 4 + 2 * (2 * 7 * 7 * 4) * 2),  # of weights; of two heads
    ],
)
def test_flops_of_known_layers(layer, shape, flops):
    assert layer.flops([shape]) == flops


MISFITS = [
    (Conv2D("c", 6, 3), [(9,)], "9", says("HxWxC", "flattens")),
    (Conv2D("c", 6, 3), IMAGE * 2, "6x5x4 and 6x5x4", says("one", "input")),
    (Conv2D("c", 6, 7, pad=0), IMAGE, "6x5x4", says("7x7")),
    (Conv1D("c", 6, 3), IMAGE, "6x5x4", says("features", "Embedding")),
    (Conv1D("c", 6, 10), LINE, "9x4", says(10, "padding", "kernel")),
    (Conv1D("c", 6, 3, groups=3), LINE, "9x4", says(4, 6, 3, "groups", "divides")),
    (Conv3D("c", 6, 3), IMAGE, "6x5x4", says("volume", "DxHxWxC")),
    (Conv3D("c", 6, 4), VOLUME, "4x5x3x4", says("4x4x4")),
    (ConvTranspose2D("c", 6, 3), LINE, "9x4", says("HxWxC", "flattens")),
    (ConvTranspose2D("c", 6, 3, stride=2, output_pad=2), IMAGE, "6x5x4", says(2, "below", "stride")),
    (ConvTranspose2D("c", 6, 1, pad=3), IMAGE, "6x5x4", says(3, "pixels", "away")),
    (Upsample("u", 2), LINE, "9x4", says("HxWxC", "flattens")),
    (Conv2D("c", 6, 3, groups=3), IMAGE, "6x5x4", says(4, 6, 3, "groups", "divides")),
    (Linear("l", 7), IMAGE, "6x5x4", says("Flatten", "GlobalAvgPool")),
    (MaxPool("p", 2, 2, pad=2), IMAGE, "6x5x4", says(2, "below", "kernel")),
    (Linear("l", 7), [(4, 6, 5, 4)], "4x6x5x4", says("Flatten", "GlobalAvgPool")),
    (GroupNorm("n", 3), IMAGE, "6x5x4", says(3, "groups", "divides")),
    (Embedding("e", 7, 3), SEQUENCE, "5x12", says("those", "entries")),
    (PositionEmbedding("p"), IMAGE, "6x5x4", says("features", "Embedding")),
    (Attention("a", 2), [(9,)], "9", says("features", "Embedding")),
    (Attention("a", 5), SEQUENCE, "5x12", says(5, "LxD", "heads")),
    (AvgPool("p", 9, 1), IMAGE, "6x5x4", says("9x9")),
    (MaxPool("p", 2, 2), [(4,)], "4", says("LxD", "HxWxC", "DxHxWxC")),
    (GlobalAvgPool("g"), [(4,)], "4", says("spatial", "DxHxWxC")),
    (BatchNorm("b"), IMAGE * 2, "6x5x4 and 6x5x4", says("one", "input")),
    (Add("a"), IMAGE, "6x5x4", says("two", "inputs")),
    (Add("a"), [(4,), (5,)], "4 and 5", says("inputs", "shape")),
    (Concat("j"), [(6, 5, 4), (6, 4, 4)], "6x5x4 and 6x4x4", says("differ", "channels")),
    (Flatten("f"), [], says("no", "input"), says("one", "input")),
]


@pytest.mark.parametrize(("layer", "inputs", "got", "wanted"), MISFITS)
def test_shapes_that_do_not_fit_are_explained(layer, inputs, got, wanted):
    with pytest.raises(ModelError) as error:
        layer.shape(inputs)
    assert str(error.value) == says(f"{layer.name!r}", type(layer).__name__, got, wanted)


def test_statistics_over_ranks_are_not_computed_again_and_those_of_evaluation_may_be():
    """A forward that talks to other ranks is made once; one that looks its statistics up may be repeated."""
    repeats = {
        (over, training): BatchNorm("b").repeats(SimpleNamespace(add_over_ranks=over, training=training))
        for over in (None, np.add)
        for training in (False, True)
    }
    assert repeats == {(None, False): True, (None, True): True, (np.add, False): True, (np.add, True): False}
