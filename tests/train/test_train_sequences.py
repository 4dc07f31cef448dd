"""Training on sequences: the same at any number of ranks, with any exchange that cuts the network or its gradients."""

import pytest
from small_runs import apart, everywhere, iterate, losses, run_of, trained

from ringtrain.errors import DivergedError, ModelError
from ringtrain.exchange.model_parallel.hybrid_layers import trailing
from ringtrain.nn import spec
from tests.says import says

# An image of 8x8 as a sequence of its rows. The layer before the one that flattens is a Linear, too.
SEQUENCE_NET = """
input = { shape = [8, 8], mean = "image", scale = 0.01 }
layers = [
  { name = "rows", kind = "Linear", units = 12, weight = { fill = "xavier" } },
  { name = "places", kind = "PositionEmbedding" },
  { name = "norm1", kind = "LayerNorm" },
  { name = "attention", kind = "Attention", heads = 3, causal = true },
  { name = "drop", kind = "Dropout", rate = 0.2 },
  { name = "sum", kind = "Add", inputs = ["drop", "places"] },
  { name = "norm2", kind = "GroupNorm", groups = 3 },
  { name = "gelu", kind = "GELU" },
  { name = "wide", kind = "Linear", units = 6, weight = { fill = "xavier" } },
  { name = "flat", kind = "Flatten" },
  { name = "fc", kind = "Linear", units = 10 },
]

[recipe]
batch = 30
lr = 0.05
momentum = 0.9
weight_decay = 0.001
decay_bias_norm = false
"""
EXACT = {
    "allreduce": {"bucket_bytes": 500},
    "sharded": {"sync": "sharded"},
    "micro-batches": {"accumulate": 3},
    "recomputed": {"recompute": True},
    "hybrid": {"fc": "hybrid"},
    "pipeline": {"fc": "pipeline"},
}
ITERATIONS = 11  # past the tail


@pytest.fixture(scope="module")
def one():
    return everywhere(1, lambda t: trained(t, SEQUENCE_NET, ITERATIONS, dtype="float64"))[0][1]


@pytest.mark.parametrize("case", EXACT)
def test_three_ranks_compute_what_one_does(one, case):
    ranks = everywhere(3, lambda t: trained(t, SEQUENCE_NET, ITERATIONS, dtype="float64", **EXACT[case]))
    assert apart([each for each in ranks if each[1] is not None], one) <= 1e-11


def test_the_bits_are_the_same_at_any_number_of_ranks():
    flags, digests = {"ops": "cpu", "reproducible": True, "shards": 4, "batch": 31}, set()
    for ranks in (1, 3):
        digests.update(rank[1] for rank in everywhere(ranks, lambda t: losses(t, SEQUENCE_NET, 4, **flags)))
    assert len(digests) == 1


def test_a_linear_layer_of_a_sequence_is_not_divided_among_ranks():
    graph = spec.parse_model(SEQUENCE_NET, "small").graph()
    names = [node.name for node in graph.plan]
    assert trailing(graph.plan, graph.shapes) == names.index("fc")
    assert trailing(graph.plan[: names.index("flat")], graph.shapes) is None
    with pytest.raises(ModelError, match=r"wants .* sequence LxD"):
        spec.parse_model(SEQUENCE_NET.replace("shape = [8, 8]", "shape = [8, 8, 2]"), "small")


def test_a_number_that_is_no_entry_ends_the_run_with_the_layers_name():
    net = """
input = { shape = [8, 8] }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "words", kind = "Embedding", entries = 5, units = 4 },
  { name = "mean", kind = "GlobalAvgPool" },
  { name = "out", kind = "Linear", units = 10 },
]

[recipe]
batch = 30
lr = 0.05
"""

    def body(transport):
        run, _ = run_of(transport, net, iterations=1)
        with pytest.raises(DivergedError, match=says(4, "look", "entries")):
            iterate(run, transport, 0, 1)

    everywhere(2, body)
