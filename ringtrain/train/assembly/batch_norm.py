"""Applies ``--batch-norm`` to a network."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError, nearest
from ringtrain.nn.graph import Graph
from ringtrain.nn.norm import BatchNorm
from ringtrain.parsing import whole_number
from ringtrain.train import texts
from ringtrain.transport.base import Transport

MODEL, SYNC, GHOST = "model", "sync", "ghost"


def with_ghost_batches(setting: str, graph: Graph, model: str) -> Graph:
    """The network with the ghost batches that ``--batch-norm`` asks for. Raises ConfigError."""
    kind, size = _read(setting)
    if kind != MODEL and not any(isinstance(node.layer, BatchNorm) for node in graph.nodes):
        raise ConfigError(texts.NO_BATCH_NORM(given=setting, model=model))
    if kind != GHOST:
        return graph
    nodes = [replace(node, layer=replace(node.layer, ghost=size)) if _is_norm(node) else node for node in graph.nodes]
    return Graph(nodes, graph.input_shape)


def _is_norm(node) -> bool:
    return isinstance(node.layer, BatchNorm)


def _read(text: str) -> tuple[str, int | None]:
    kind, colon, size = text.partition(":")
    if kind not in (MODEL, SYNC, GHOST):
        meant = f"{kind}:SIZE" if colon else kind
        raise ConfigError(texts.UNKNOWN_BATCH_NORM(given=text, hint=nearest(meant, (MODEL, SYNC, "ghost:SIZE"))))
    if kind != GHOST and not colon:
        return kind, None
    if kind == GHOST and (examples := whole_number(size)):
        return kind, examples
    raise ConfigError(texts.BATCH_NORM(given=text, model=MODEL, sync=SYNC))


def is_whole(setting: str) -> bool:
    """Whether statistics are of the whole batch, all ranks together."""
    return _read(setting)[0] == SYNC


def grain_of(setting: str, graph: Graph, reproducible: bool) -> int:
    """Examples that must stay on one rank: a ghost batch, whose statistics are then the same at any number of ranks.
    A shard, of a ``reproducible`` run, has the same ghost batches on any rank."""
    if is_whole(setting) or reproducible:
        return 1
    return math.lcm(*_ghosts(graph), 1)


def _ghosts(graph: Graph) -> list[int]:
    return [node.layer.ghost for node in graph.plan if _is_norm(node)]


def adder(setting: str, transport: Transport, deadline_s: float) -> Callable[[np.ndarray], None] | None:
    """The all-reduce of layers' statistics; None where layers have their own."""
    if not is_whole(setting):
        return None

    def add(numbers: np.ndarray) -> None:
        transport.native_allreduce_start(numbers).wait(deadline_s)

    return add


def words(setting: str) -> str | None:
    """For the header; None where it is as the model file has it."""
    kind, size = _read(setting)
    if kind == SYNC:
        return texts.WHOLE_BATCH()
    return texts.GHOST_BATCHES(size=size) if kind == GHOST else None


def smaller(config: TrainConfig, graph: Graph) -> str | None:
    """For the header: a note where shards do not hold whole ghost batches; else None."""
    least, most = config.batch // config.shards, -(-config.batch // config.shards)
    uneven = [ghost for ghost in _ghosts(graph) if least % ghost or most % ghost]
    if not config.reproducible or not uneven:
        return None
    shards = f"{least}" if least == most else f"{least} or {most}"
    whole, rest = divmod(config.batch, math.lcm(*_ghosts(graph)))
    advice = texts.WHOLE_GHOSTS(shards=whole)
    if rest:
        advice = texts.NO_WHOLE_GHOSTS(batch=config.batch)
    return texts.GHOSTS_AND_SHARDS(shards=shards, size=max(uneven), advice=advice)
