"""Graphs: wiring, folded ReLUs, gradients over fan-out, and the order in which spans become final."""

from dataclasses import replace

import numpy as np
import pytest
from nn_support import TOLERANCE, Net, chain, make_pass, reference

from ringtrain.errors import ModelError
from ringtrain.nn.conv import Conv2D
from ringtrain.nn.conv_columns import ConvTranspose2D
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node
from ringtrain.nn.layers import Add, Concat, Dropout, Flatten, Linear, ReLU
from ringtrain.nn.norm import BatchNorm
from ringtrain.nn.pool import AvgPool, GlobalAvgPool, MaxPool, Upsample
from tests.says import says


def plain():
    return chain(
        Conv2D("conv", 4, 3, pad=1),
        ReLU("relu"),
        MaxPool("pool", 3, 2, ceil=True),
        Flatten("flat"),
        Dropout("drop", 0.3),
        Linear("fc", 6),
        ReLU("relu2"),
        Linear("out", 4),
    )


def residual():
    """Fan-out of an image, of a sum and of a concatenation; ghosts of 2 of 5 examples."""
    return [
        Node(Conv2D("stem", 4, 3, pad=1, bias=None), ("input",)),
        Node(BatchNorm("norm", ghost=2), ("stem",)),
        Node(ReLU("relu"), ("norm",)),
        Node(Conv2D("left", 4, 3, pad=1), ("relu",)),
        Node(BatchNorm("norm2", ghost=2), ("left",)),
        Node(Add("sum"), ("norm2", "relu")),
        Node(ReLU("relu2"), ("sum",)),
        Node(Conv2D("a", 2, 1), ("relu2",)),
        Node(AvgPool("b", 3, 1, pad=1), ("relu2",)),
        Node(Concat("join"), ("a", "b", "relu2")),
        Node(Add("thrice"), ("join", "join", "join")),
        Node(GlobalAvgPool("gap"), ("thrice",)),
        Node(Linear("out", 4), ("gap",)),
    ]


def enlarging():
    """Down and up again, with a connection past both."""
    return [
        Node(Conv2D("down", 4, 3, pad=1), ("input",)),
        Node(ReLU("relu"), ("down",)),
        Node(MaxPool("pool", 2, 2), ("relu",)),
        Node(ConvTranspose2D("larger", 3, 2, stride=2), ("pool",)),
        Node(ReLU("relu2"), ("larger",)),
        Node(Concat("join"), ("relu2", "relu")),
        Node(Conv2D("depthwise", 7, 3, stride=2, pad=1, groups=7), ("join",)),
        Node(Upsample("twice", 2, mode="bilinear"), ("depthwise",)),
        Node(GlobalAvgPool("gap"), ("twice",)),
        Node(Linear("out", 4), ("gap",)),
    ]


NETS = {"plain": plain, "residual": residual, "enlarging": enlarging}
SHAPE = (6, 6, 3)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_whole_networks(name, fused):
    assert Net(NETS[name](), SHAPE, fused=fused).check_gradients() <= TOLERANCE


@pytest.mark.parametrize("name", NETS)
def test_folding_changes_no_gradient(name):
    fused, apart = Net(NETS[name](), SHAPE), Net(NETS[name](), SHAPE, fused=False)
    assert sum(len(node.folded) for node in fused.graph.plan) == len(apart.graph.plan) - len(fused.graph.plan) >= 2
    (loss, grads), (loss_apart, grads_apart) = fused.gradients(), apart.gradients()
    assert loss == pytest.approx(loss_apart, rel=1e-14)
    np.testing.assert_allclose(grads, grads_apart, rtol=1e-11, atol=1e-14)


def test_a_relu_is_folded_only_into_a_layer_that_nothing_else_reads():
    nodes = [
        Node(Conv2D("a", 4, 1), ("input",)),
        Node(ReLU("relu_a"), ("a",)),
        Node(Add("sum"), ("a", "relu_a")),  # reads a before its ReLU
        Node(MaxPool("pool", 2, 2), ("sum",)),
        Node(ReLU("relu_pool"), ("pool",)),  # a pool cannot absorb it
        Node(Conv2D("b", 4, 1), ("relu_pool",)),
        Node(ReLU("relu_b"), ("b",)),
        Node(ReLU("again"), ("relu_b",)),  # a ReLU of a ReLU stays
        Node(GlobalAvgPool("gap"), ("again",)),
    ]
    graph = Graph(nodes, SHAPE)
    assert [node.name for node in graph.plan] == ["a", "relu_a", "sum", "pool", "relu_pool", "b", "again", "gap"]
    assert [node.folded for node in graph.plan if node.folded] == [("relu_b",)]
    assert graph.plan[6].inputs == ("b",)
    assert graph.plan[5].layer == replace(nodes[5].layer, relu=True)
    net = Net(nodes, SHAPE)
    assert net.check_gradients() <= TOLERANCE


def test_a_sum_is_folded_into_the_later_of_its_inputs_alone():
    """Which must be a batch normalisation that nothing else reads: no layer changes its place."""
    nodes = [
        Node(BatchNorm("norm"), ("input",)),
        Node(Add("early"), ("norm", "input")),
        Node(BatchNorm("before"), ("early",)),
        Node(Conv2D("conv", 3, 1), ("early",)),
        Node(Add("not the later"), ("before", "conv")),
        Node(BatchNorm("b1"), ("conv",)),
        Node(BatchNorm("b2"), ("not the later",)),
        Node(Add("both"), ("b2", "b1")),
        Node(ReLU("relu"), ("both",)),
        Node(BatchNorm("read twice"), ("relu",)),
        Node(Add("itself"), ("read twice", "read twice")),
        Node(BatchNorm("positive"), ("itself",)),
        Node(ReLU("its relu"), ("positive",)),
        Node(Add("of a relu"), ("its relu", "itself")),
        Node(BatchNorm("one of three"), ("of a relu",)),
        Node(Add("three"), ("one of three", "of a relu", "itself")),
        Node(GlobalAvgPool("gap"), ("three",)),
    ]
    net = Net(nodes, SHAPE)
    folded = {node.name: (node.folded, node.inputs) for node in net.graph.plan if node.folded}
    assert folded == {
        "norm": (("early",), ("input", "input")),
        "b2": (("both", "relu"), ("not the later", "b1")),
        "positive": (("its relu",), ("itself",)),
    }
    assert net.graph.plan[1].inputs == ("norm",)
    assert net.check_gradients() <= TOLERANCE
    for whole in (None, lambda numbers: None):  # statistics of ghost batches, of the whole batch
        results = []
        for each in (net, Net(nodes, SHAPE, fused=False)):
            results.append(each.gradients(ctx=make_pass(each.ops, each.count, add_over_ranks=whole)))
        assert results[0][0] == pytest.approx(results[1][0], rel=1e-14)
        np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-10, atol=1e-13)


def assert_final(net: Net, spans) -> list[str]:
    """Each span comes once, and its gradient does not change afterwards."""
    seen = {}
    for span in spans:
        assert span.name not in seen, f"{span.name} came twice"
        seen[span.name] = net.ops.to_host(net.arena.grad(span))
    for span in net.arena.spans:
        assert span.name in seen, f"{span.name} never came"
        final = net.ops.to_host(net.arena.grad(span))
        assert np.array_equal(seen[span.name], final), f"{span.name} came before it was final"
    return list(seen)


@pytest.mark.parametrize("name", NETS)
def test_each_span_is_yielded_once_when_final_from_last_to_first(name):
    net = Net(NETS[name](), SHAPE)
    _, spans = net.step()
    assert assert_final(net, spans) == [span.name for span in reversed(net.arena.spans)]


def test_micro_batches_add_up_to_the_batch():
    """Ghosts of 2: examples 0-3 and 4-5 as two micro-batches, dropout and statistics included."""
    nodes = chain(
        Conv2D("c", 4, 3), BatchNorm("b", ghost=2), ReLU("r"), GlobalAvgPool("g"), Dropout("d"), Linear("l", 3)
    )
    net = Net(nodes, SHAPE, count=6)
    _, whole = net.gradients()
    for start, stop in ((0, 4), (4, 6)):
        ctx = make_pass(net.ops, stop - start, total=6, start=start, accumulate=start > 0)
        _, parts = net.gradients(ctx=ctx, rows=slice(start, stop))
    np.testing.assert_allclose(parts, whole, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("name", NETS)
def test_a_rank_without_examples_takes_part(name):
    net = Net(NETS[name](), SHAPE)
    net.ops.fill(net.arena.grads, 7)
    loss, spans = net.step(ctx=make_pass(net.ops, 0, total=5), rows=slice(0, 0))
    assert [span.name for span in spans] == [span.name for span in reversed(net.arena.spans)]
    grads = net.ops.to_host(net.arena.grads)
    assert loss == 0
    assert not any(grads[span.start : span.start + span.count].any() for span in net.arena.spans)


def test_a_steady_iteration_allocates_nothing():
    net = Net(residual(), SHAPE)
    ctx = make_pass(net.ops, 5)
    net.gradients(ctx=ctx)
    shapes, real = [], net.ops.empty
    ctx.space._ops.empty = lambda shape, dtype=None: shapes.append(shape) or real(shape, dtype)
    x, totals, labels = net.ops.from_host(net.x), net.ops.zeros((3,), "float64"), net.ops.from_host(net.labels)
    shapes.clear()
    for count in (5, 3, 5):  # a tail is a slice
        logits, tapes = net.graph.forward(ctx, x[:count])
        list(net.graph.backward(ctx, net.loss.backward(ctx, logits, labels[:count], totals, 5), tapes))
    assert shapes == []


def test_two_passes_in_flight_do_not_disturb_each_other():
    net = Net(plain(), SHAPE)
    _, alone = net.gradients()
    first, second = make_pass(net.ops, 5), make_pass(net.ops, 5)
    x, totals = net.ops.from_host(net.x), net.ops.zeros((3,), "float64")
    logits, tapes = net.graph.forward(first, x)
    net.graph.forward(second, net.ops.from_host(-net.x))
    dlogits = net.loss.backward(first, logits, net.ops.from_host(net.labels), totals, 5)
    list(net.graph.backward(first, dlogits, tapes))
    np.testing.assert_array_equal(net.ops.to_host(net.arena.grads), alone)


@pytest.mark.parametrize("name", NETS)
def test_features_mean_what_the_model_file_calls_them(name):
    fused, apart = Net(NETS[name](), SHAPE), Net(NETS[name](), SHAPE, fused=False)
    x = fused.ops.from_host(fused.x)
    for node in fused.graph.nodes:
        y, _ = fused.graph.forward(make_pass(fused.ops, 5), x, upto=node.name)
        expected, _ = apart.graph.forward(make_pass(apart.ops, 5), x, upto=node.name)
        np.testing.assert_allclose(fused.ops.to_host(y), apart.ops.to_host(expected), rtol=1e-12)
        assert y.shape[1:] == fused.graph.shapes[node.name]


def test_features_of_an_unknown_layer():
    net = Net(plain(), SHAPE)
    with pytest.raises(ModelError, match=says("'fcc'", "did you mean 'fc'? known: ")):
        net.graph.forward(make_pass(net.ops, 5), net.ops.from_host(net.x), upto="fcc")


def test_forward_says_which_spans_it_is_about_to_read():
    net, needed = Net(residual(), SHAPE), []
    net.graph.forward(make_pass(net.ops, 5), net.ops.from_host(net.x), need=lambda span: needed.append(span.name))
    assert needed == [span.name for span in net.arena.spans]


def test_first_nonfinite_names_the_first_layer():
    net = Net(residual(), SHAPE)
    ctx = make_pass(net.ops, 5)
    x = net.ops.from_host(net.x)
    assert net.graph.first_nonfinite(ctx, net.graph.forward(ctx, x)[1]) is None
    span = next(span for span in net.arena.spans if span.name == "left.weight")
    net.ops.fill(net.arena.weight(span), float("nan"))
    assert net.graph.first_nonfinite(ctx, net.graph.forward(ctx, x)[1]) == "left"


def test_the_gradient_of_images_is_never_computed_and_layers_after_the_last_weight_pass_theirs_on():
    """A layer without parameters in front of all others is not visited backward."""

    class Refusing(type(reference())):
        def max_pool_back(self, *arrays):
            raise AssertionError("nothing before the first weight wants a gradient")

    nodes = chain(MaxPool("pool", 2, 2), Flatten("flat"), Linear("out", 3), ReLU("relu"))
    assert Net(nodes, SHAPE, ops=Refusing("float64")).check_gradients() <= TOLERANCE


BAD = [
    ([], says("layers", "least")),
    ([Node(Flatten("a"), ("input",)), Node(Flatten("a"), ("a",))], says("'a'", "'input'", "taken")),
    ([Node(Flatten("input"), ("input",))], says("'input'", "taken")),
    (
        [Node(Flatten("flat"), ("input",)), Node(Linear("b", 3), ("flet",))],
        says("'b'", "'flet'", "did you mean 'flat'?"),
    ),
    ([Node(Flatten("a"), ("input",)), Node(Flatten("b"), ("input",))], says("'a'", "reads")),
    (chain(Linear("fc", 3)), says("'fc'", "Linear", "6x6x3", "Flatten", "GlobalAvgPool")),
]


@pytest.mark.parametrize(("nodes", "message"), BAD)
def test_wiring_that_is_wrong_is_explained(nodes, message):
    with pytest.raises(ModelError, match=message):
        Graph(nodes, SHAPE)


def test_describe_counts_what_each_layer_costs():
    rows = {row.layer: row for row in Graph(residual(), SHAPE).describe(batch=10)}
    assert rows["stem"].parameters == 3 * 3 * 3 * 4
    assert rows["stem"].activation_bytes == 10 * 6 * 6 * 4 * 4
    assert rows["norm"].parameters == 8
    assert rows["norm"].gradient_bytes == 16 * 4  # running statistics are exchanged too
    assert (rows["sum"].kind, rows["relu2"].kind) == ("Add (in norm2)", "ReLU (in norm2)")
    assert rows["relu2"].activation_bytes == 0
    assert rows["join"].shape == (6, 6, 10)
    doubled = Graph(residual(), SHAPE).describe(batch=10, dtype="float64")
    assert doubled[0].gradient_bytes == 2 * rows["stem"].gradient_bytes
