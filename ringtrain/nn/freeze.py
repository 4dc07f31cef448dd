"""Frozen parameters: those that training does not change.

A pattern is a name of a layer or of a parameter ("conv1", "fc.bias"), of the model or of a file of weights, with the
wildcards of a shell. A frozen layer without a trained one before it has no backward. A BatchNorm whose scale and shift
are frozen normalises by its running averages in training too, and keeps them."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ringtrain.errors import ModelError
from ringtrain.nn import graph_checks
from ringtrain.nn.graph import Graph
from ringtrain.nn.graph_checks import Node

SHOWN = 6  # names in an error


def freeze(graph: Graph, patterns: Sequence[str], names_in_files: Mapping[str, Sequence[str]]) -> Graph:
    """Return the network with parameters frozen. ``names_in_files``: of each parameter, beside its name here. Raises
    ModelError for a pattern that no name matches, and if no parameter is left to train."""
    names = {name: _names((name, *names_in_files.get(name, ()))) for name, _ in graph.parameters()}
    known = set().union(*names.values())
    for pattern in patterns:
        if not any(_matches(name, [pattern]) for name in known):
            near = ", ".join(difflib.get_close_matches(pattern, sorted(known), SHOWN, 0.0))
            raise ModelError(f"--freeze {pattern}: no layer or parameter has such a name; nearest: {near}")
    matched = {name for name, all_names in names.items() if any(_matches(each, patterns) for each in all_names)}
    frozen = Graph([_frozen(node, graph, matched) for node in graph.nodes], graph.input_shape)
    if all(parameter.frozen for _, parameter in frozen.parameters()):
        raise ModelError(
            f"--freeze {','.join(patterns)}: that is every parameter, and none is left to train: freeze fewer"
        )
    return frozen


def _names(parameters: Sequence[str]) -> set[str]:
    """These names of a parameter, and those of its layer and of the groups that hold it."""
    return {
        ".".join(parts[:end]) for parts in (name.split(".") for name in parameters) for end in range(1, len(parts) + 1)
    }


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _frozen(node: Node, graph: Graph, matched: set[str]) -> Node:
    parameters = node.layer.parameters(graph_checks.input_shapes(node, graph.shapes))
    trained = {p.name for p in parameters if p.role != "statistic"}
    names = {name for name in trained if f"{node.name}.{name}" in matched}
    if names and names == trained:
        names |= {p.name for p in parameters}  # its running averages too
    return replace(node, layer=replace(node.layer, frozen=frozenset(names)))
