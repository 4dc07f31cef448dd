"""The weights of a run that begins anew: drawn by seed and name, or read from ``--init``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.config.record import ModelConfig
from ringtrain.memory.arena import Arena, lay_out
from ringtrain.memory.spans import Span
from ringtrain.nn.graph import Graph
from ringtrain.nn.initial import initial, initialise
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.transport.agree import keep_on_root
from ringtrain.transport.base import Transport
from ringtrain.weights.matching import read_weights


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """weights: by name, on rank 0; None on others, and if all are drawn
    words:   what matched, on every rank; "" if all are drawn
    """

    weights: Mapping[str, np.ndarray] | None = None
    words: str = ""

    def fill(self, transport: Transport, ops: Ops, graph: Graph, arena: Arena, seed: int) -> None:
        """Fill this rank's arena. Collective, unless all are drawn. ``graph``: of whole layers"""
        if not self.words:
            initialise(arena, ops, seed)
            return
        for flat in (arena.weights, arena.grads):
            ops.fill(flat, 0)
        spans = lay_out(graph.parameters())
        spans_by_name = {span.name: span for span in spans}
        values = self._flat(spans, seed, ops.dtype)
        transport.broadcast(values)
        for span in arena.spans:
            whole_span = spans_by_name[span.name]
            whole = values[whole_span.start : whole_span.start + whole_span.count].reshape(whole_span.shape)
            ops.upload(np.ascontiguousarray(span.parameter.own(whole)), arena.weight(span))

    def _flat(self, spans: Sequence[Span], seed: int, dtype: DTypeLike) -> np.ndarray:
        """The weights over these spans, drawn where there are none; zeros on other ranks than 0."""
        flat = np.zeros(spans[-1].stop if spans else 0, dtype)
        if self.weights is None:
            return flat
        for span in spans:
            stored = self.weights.get(span.name)
            values = initial(span.parameter, span.name, seed, dtype) if stored is None else stored
            flat[span.start : span.start + span.count] = values.reshape(-1)
        return flat


def find_initial(transport: Transport, config: ModelConfig, model: ModelSpec) -> InitialWeights:
    """Read the weights of ``--init`` on rank 0. Collective; raises RingtrainError on every rank alike."""
    source = config.init
    if source is None:
        return InitialWeights()

    def read() -> tuple[Mapping[str, np.ndarray], str]:
        with transport.activity.holds_gil(f"reading weights {source}"):
            matched = read_weights(source, model.graph())
        return matched.weights, f"weights of {source}: {matched.words()}"

    return InitialWeights(*keep_on_root(transport, read))
