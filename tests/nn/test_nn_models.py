"""The models that ship: they load, have the published numbers of parameters, and run forward and backward."""

from pathlib import Path

import numpy as np
import pytest
from nn_support import Net, chain, make_pass, reference

from ringtrain.config import resolve
from ringtrain.nn import spec
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.describe import total
from ringtrain.nn.layers import Flatten, Linear

# Caffe's examples and He et al. 2016; resnet20 has its three projections (2,560 weights and 224 scales) besides.
PARAMETERS = {
    "digits": 76_522,
    "mlp": 1_863_690,
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "cifar10_full": 89_578,
    "resnet20": 272_474,
    "resnet18": 11_173_962,
}


def test_these_models_ship():
    assert set(spec.available()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_publication(name):
    model = spec.load(name)
    sums = total(model.graph().describe())
    assert sums.parameters == PARAMETERS[name]
    assert sums.shape == (10,)
    assert model.summary


@pytest.mark.parametrize("name", PARAMETERS)
def test_recipes_are_configurations(name):
    config = resolve((name, spec.load(name).recipe))
    assert config.batch
    assert config.lr
    assert config.epochs or config.iterations


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"resnet18"}))
def test_two_examples_run_forward_and_backward(name):
    model = spec.load(name)
    net = Net(model.nodes, model.input.shape, count=2, ops=reference("float32"))
    loss, spans = net.step()
    assert [span.name for span in spans] == [span.name for span in reversed(net.arena.spans)]
    assert np.isfinite(loss)
    evaluation = make_pass(net.ops, 2, training=False)
    logits, _ = net.graph.forward(evaluation, net.ops.from_host(net.x.astype(np.float32)))
    assert np.isfinite(net.ops.to_host(logits)).all()


def test_known_shapes_and_multipliers():
    graph = spec.load("cifar10_full").graph()
    assert [graph.shapes[f"pool{i}"] for i in (1, 2, 3)] == [(16, 16, 32), (8, 8, 32), (4, 4, 64)]
    table = dict(graph.parameters())
    assert (table["ip1.weight"].decay, table["ip1.bias"].decay) == (250, 0)
    assert [table[f"conv{i}.bias"].lr for i in (1, 2, 3)] == [2, 2, 1]
    assert spec.load("lenet").graph().shapes["flat"] == (800,)
    assert spec.load("resnet18").graph().shapes["stage4.2.relu2"] == (4, 4, 512)


def test_the_last_scale_of_a_residual_block_starts_at_zero():
    table = dict(spec.load("resnet20").graph().parameters())
    starts = {name: p.fill.value for name, p in table.items() if name.endswith("gamma")}
    zero = {name for name, start in starts.items() if start == 0}
    assert zero == {f"stage{s}.{b}.norm2.gamma" for s in (1, 2, 3) for b in (1, 2, 3)}


def test_resnet18_counts_two_flops_a_multiplication():
    """0.556 billion multiplications, as is reported for the CIFAR stem."""
    sums = total(spec.load("resnet18").graph().describe())
    assert sums.flops == pytest.approx(2 * 0.556e9, rel=0.01)


def test_the_count_can_be_wrong():
    net = Net(chain(Flatten("f"), Linear("l", 10)), (8, 8, 1))
    assert total(net.graph.describe()).parameters == 650 != PARAMETERS["digits"]


def test_the_examples_of_the_readme_are_models():
    readme = (Path(__file__).parents[2] / "models" / "README.md").read_text()
    small, blocks = (part.split("```")[0] for part in readme.split("```toml")[1:])
    assert [node.name for node in spec.parse(small, "small").nodes] == ["conv", "relu", "pool", "flat", "out"]
    made = spec.parse("input = { shape = [8, 8, 16] }\n" + blocks, "blocks")
    assert [node.name for node in made.nodes][:5] == ["stem", "one.conv", "one.relu", "one.sum", "two.conv"]
    for name, count in PARAMETERS.items():
        assert f"| `{name}` | {count:,} |" in readme
    for kind in LAYERS:
        assert f"`{kind}`" in readme
