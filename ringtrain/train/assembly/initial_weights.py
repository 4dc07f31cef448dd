"""The weights of a run that begins anew: drawn by seed and name, or those of ``--init``."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ringtrain.config.record import TrainConfig
from ringtrain.nn.arena import Arena, lay_out
from ringtrain.nn.graph import Graph
from ringtrain.nn.initial import initial, initialise
from ringtrain.nn.spec import ModelSpec
from ringtrain.ops.base import Ops
from ringtrain.train.agree import on_root
from ringtrain.transport.base import Transport
from ringtrain.weights import texts as weight_texts
from ringtrain.weights.sources import read_weights


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """weights: by name, on rank 0; None on others, and if all are drawn
    words:   what matched, on every rank; "" if all are drawn
    """

    weights: Mapping[str, np.ndarray] | None = None
    words: str = ""

    def place(self, transport: Transport, ops: Ops, graph: Graph, arena: Arena, seed: int) -> None:
        """Fill this rank's arena. Collective, unless all are drawn. ``graph``: of whole layers"""
        initialise(arena, ops, seed)
        if not self.words:
            return
        spans = lay_out(graph.parameters())
        flat = np.zeros(spans[-1].stop if spans else 0, ops.dtype)
        for span in spans if self.weights is not None else ():
            given = self.weights.get(span.name)
            values = initial(span.parameter, span.name, seed, ops.dtype) if given is None else given
            flat[span.start : span.start + span.count] = values.reshape(-1)
        transport.broadcast(flat)
        places = {span.name: span for span in spans}
        for span in arena.spans:
            place = places[span.name]
            whole = flat[place.start : place.start + place.count].reshape(place.shape)
            ops.upload(np.ascontiguousarray(span.parameter.own(whole)), arena.weight(span))


def find_initial(transport: Transport, config: TrainConfig, model: ModelSpec) -> InitialWeights:
    """Read the weights of ``--init`` on rank 0. Collective; raises RingtrainError on every rank alike."""
    if config.init is None:
        return InitialWeights()
    found: list[Mapping[str, np.ndarray]] = []

    def read() -> str:
        with transport.activity.holds_gil(f"reading weights {config.init}"):
            matched = read_weights(config.init, model.graph())
        found.append(matched.weights)
        return weight_texts.INITIAL(source=config.init, words=matched.words())

    words = on_root(transport, read)
    return InitialWeights(found[0] if found else None, words)
