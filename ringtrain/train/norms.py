"""What ``--batch-norm`` makes of a network's batch normalisation."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringtrain.config import TrainConfig
from ringtrain.errors import ConfigError, nearest
from ringtrain.nn.graph import Graph
from ringtrain.nn.norm import BatchNorm
from ringtrain.transport.base import Transport

MODEL, SYNC, GHOST = "model", "sync", "ghost"


def told(config: TrainConfig, graph: Graph, model: str) -> Graph:
    """The network with ghost batches as the configuration has them. Raises ConfigError."""
    kind, size = _read(config.batch_norm)
    if kind != MODEL and not any(isinstance(node.layer, BatchNorm) for node in graph.nodes):
        raise ConfigError(
            f"--batch-norm {config.batch_norm} is for networks with batch normalisation, and model {model!r} has none: "
            "leave it out"
        )
    if kind != GHOST:
        return graph
    nodes = [replace(node, layer=replace(node.layer, ghost=size)) if _is_norm(node) else node for node in graph.nodes]
    return Graph(nodes, graph.input_shape)


def _is_norm(node) -> bool:
    return isinstance(node.layer, BatchNorm)


def _read(text: str) -> tuple[str, int | None]:
    kind, colon, size = text.partition(":")
    if kind not in (MODEL, SYNC, GHOST):
        raise ConfigError(f"batch_norm is {text!r}; {nearest(kind, (MODEL, SYNC, 'ghost:SIZE'))}")
    if kind != GHOST and not colon:
        return kind, None
    if kind == GHOST and size.isdecimal() and int(size) > 0:
        return kind, int(size)
    raise ConfigError(
        f"batch_norm is {text!r}; it wants {MODEL}, {SYNC}, or ghost:SIZE with a whole number of examples of at least 1"
    )


def is_whole(config: TrainConfig) -> bool:
    """Whether statistics are of the whole batch, all ranks together."""
    return _read(config.batch_norm)[0] == SYNC


def grain_of(config: TrainConfig, graph: Graph) -> int:
    """Examples that must stay on one rank: a ghost batch, whose statistics are then the same at any number of ranks."""
    if is_whole(config):
        return 1
    return math.lcm(*(node.layer.ghost for node in graph.plan if _is_norm(node)), 1)


def adder(config: TrainConfig, transport: Transport) -> Callable[[np.ndarray], None] | None:
    """What layers add their statistics over ranks by, where they do."""
    if not is_whole(config):
        return None

    def add(numbers: np.ndarray) -> None:
        transport.native_allreduce_start(numbers).wait(config.deadline_s)

    return add


def words(config: TrainConfig) -> str | None:
    """For the header; None where it is as the model file has it."""
    kind, size = _read(config.batch_norm)
    if kind == SYNC:
        return "batch normalisation by statistics of the whole batch, summed over ranks in every layer"
    return f"batch normalisation by ghost batches of {size}" if kind == GHOST else None
