"""Applies ``--batch-norm`` to a network."""

import math
from dataclasses import replace

from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError, nearest
from ringtrain.nn.graph import Graph
from ringtrain.nn.norm import BatchNorm
from ringtrain.parsing import whole_number

MODEL, SYNC, GHOST = "model", "sync", "ghost"


def with_ghost_batches(setting: str, graph: Graph, model: str) -> Graph:
    """The network with the ghost batches that ``--batch-norm`` asks for. Raises ConfigError."""
    kind, size = _read(setting)
    if kind != MODEL and not any(isinstance(node.layer, BatchNorm) for node in graph.nodes):
        raise ConfigError(
            f"--batch-norm {setting} is for networks with batch normalisation, and model {model!r} has none: leave it "
            "out"
        )
    if kind != GHOST:
        return graph
    layers = [replace(old, ghost=size) if isinstance(old := node.layer, BatchNorm) else old for node in graph.nodes]
    nodes = [replace(node, layer=layer) for node, layer in zip(graph.nodes, layers, strict=True)]
    return Graph(nodes, graph.input_shape)


def _read(text: str) -> tuple[str, int]:
    """(kind, size of a ghost batch or 0)"""
    kind, colon, size = text.partition(":")
    if kind not in (MODEL, SYNC, GHOST):
        meant = f"{kind}:SIZE" if colon else kind
        raise ConfigError(f"batch_norm is {text!r}; {nearest(meant, (MODEL, SYNC, 'ghost:SIZE'))}")
    if kind != GHOST and not colon:
        return kind, 0
    if kind == GHOST and (examples := whole_number(size)):
        return kind, examples
    raise ConfigError(
        f"batch_norm is {text!r}; it wants {MODEL}, {SYNC}, or ghost:SIZE with a whole number of examples of at least 1"
    )


def is_whole(setting: str) -> bool:
    """Whether statistics are computed over the whole batch, on all ranks."""
    return _read(setting)[0] == SYNC


def grain_of(setting: str, graph: Graph, reproducible: bool) -> int:
    """The examples that must stay on one rank: a ghost batch, whose statistics are then the same at any number of
    ranks. A shard of a ``reproducible`` run has the same ghost batches on any rank."""
    if is_whole(setting) or reproducible:
        return 1
    return math.lcm(*_ghosts(graph), 1)


def _ghosts(graph: Graph) -> list[int]:
    return [node.layer.ghost for node in graph.plan if isinstance(node.layer, BatchNorm)]


def partial_ghosts(config: TrainConfig, graph: Graph) -> str | None:
    """The note that shards do not hold whole ghost batches, or None."""
    least, most = config.run.batch // config.exchange.shards, -(-config.run.batch // config.exchange.shards)
    uneven = [ghost for ghost in _ghosts(graph) if least % ghost or most % ghost]
    if not config.exchange.reproducible or not uneven:
        return None
    shards = f"{least}" if least == most else f"{least} or {most}"
    whole, rest = divmod(config.run.batch, math.lcm(*_ghosts(graph)))
    advice = (
        f"No --shards holds whole ones of --batch {config.run.batch}, which is no multiple of that"
        if rest
        else f"--shards {whole} would hold whole ones, on as many ranks at most"
    )
    return (
        f"ghost batches of batch normalisation end with a shard: of {shards} examples here, where {max(uneven)} were "
        f"asked for. {advice}"
    )
