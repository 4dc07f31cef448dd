"""A small pipeline without a stage: exchanges of its ranks, whose gradients a test gives."""

import numpy as np
from exchange_support import HYPER

from ringtrain.exchange.model_parallel.pipeline import MessageServing
from ringtrain.nn import spec
from ringtrain.nn.arena import Arena
from ringtrain.ops.reference import ReferenceOps
from ringtrain.optim.optimizers import make_optimizer
from tests.fakes.strategies import Pipeline

TEXT = """
input = { shape = [4, 4, 1] }
layers = [
  { name = "conv", kind = "Conv2D", channels = 2, kernel = 3, pad = 1 },
  { name = "flat", kind = "Flatten" },
  { name = "fc1", kind = "Linear", units = 16 },
  { name = "fc2", kind = "Linear", units = 8 },
  { name = "fc3", kind = "Linear", units = 10 },
]
"""


def whole_arena(graph):
    return Arena(lambda count, dtype: np.ones(count), graph.parameters(), "float64")


def bound(t, optimizer="sgd", **options):
    """An exchange with this rank's arena, weights of 1, and the spans of the whole network."""
    ops, graph = ReferenceOps("float64"), spec.parse_model(TEXT, "net").graph()
    exchange = Pipeline(t, ops, deadline_s=20.0, **options)
    arena = Arena(t.scratch, exchange.prepare(graph).parameters(), "float64")
    exchange.bind(arena, make_optimizer(optimizer, arena.spans, HYPER))
    spans = whole_arena(graph).spans
    arena.weights[...] = exchange.own_part(np.ones(spans[-1].stop))
    if t.rank not in exchange.facts.roles.whole(t.size):
        exchange.serving = MessageServing()  # in a run it is the stage
    return exchange, arena, spans
