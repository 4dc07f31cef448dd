"""Finds the weights of a network in what ``--init`` names, by name and shape; and the weights of a checkpoint that are
used, the average of ``--ema``, or the last."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain.errors import UsageError, plain
from ringtrain.nn.base import Shape
from ringtrain.nn.graph import Graph
from ringtrain.nn.head import head_of
from ringtrain.nn.shapes import format_shape
from ringtrain.optim.optimizers import EMA
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.run_folder.run_folder import find_checkpoint
from ringtrain.weights.layouts import TorchParameter, torch_parameters
from ringtrain.weights.names import common_prefix, is_counter, timm_form, torchvision_names
from ringtrain.weights.tensor_file import SUFFIX, TensorFile

SHOWN = 6  # names of a list
NEAREST = 3
PICKLES = (".pth", ".pt", ".bin", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True)
class Match:
    """The weights of a file that fit a network."""

    weights: dict[str, np.ndarray]  # name of the parameter → values, in ringtrain's layout
    total: int  # the network's parameters
    new: tuple[str, ...]  # the parameters without weights, with their shapes where the file's are others
    unused: tuple[str, ...]  # the names of the file that no parameter has
    prefix: str  # what precedes all names of the file, and is no part of these

    def words(self) -> str:
        """Return the report: "60 of 62 matched; new: fc.weight, fc.bias; not used: …"."""
        parts = [f"{len(self.weights)} of {self.total} matched"]
        if self.new:
            parts.append(f"new: {_listed(self.new)}")
        if self.unused:
            parts.append(f"not used: {_listed(self.unused)}")
        if self.prefix:
            parts.append(f"names there begin with {self.prefix!r}, which is left out")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter, and what a file may call it: the first name that is there counts, and an export has the first.
    ``shape``: in the file, which may have other axes of one element at both ends"""

    name: str
    layer: str
    names: tuple[str, ...]
    shape: Shape
    convert: Callable[[np.ndarray], np.ndarray]


def wanted_of_torch(graph: Graph) -> list[Wanted]:
    """Return the parameters of a network by PyTorch's names, torchvision's or timm's first."""
    parameters = torch_parameters(graph)
    names = torchvision_names({each.layer for each in parameters})
    return [Wanted(each.name, each.layer, _names(each, names), each.shape, each.from_torch) for each in parameters]


def _names(parameter: TorchParameter, layer_names: Mapping[str, str]) -> tuple[str, ...]:
    layers = layer_names.get(parameter.layer, parameter.layer), parameter.layer
    names = [f"{layer}.{parameter.suffix}" for layer in layers]
    return tuple(dict.fromkeys((timm_form(names[0], parameter.shape)[0], *names)))


def wanted_here(graph: Graph) -> list[Wanted]:
    """Return the parameters of a network as a checkpoint has them."""
    return [
        Wanted(name, name.rpartition(".")[0], (name,), parameter.shape, np.asarray)
        for name, parameter in graph.parameters()
    ]


def match(
    graph: Graph, wanted: Sequence[Wanted], shapes: Mapping[str, Shape], read: Callable[[str], np.ndarray], source: str
) -> Match:
    """Match a network's parameters with the arrays of a file.

    shapes: of the arrays in the file, by name;  read: name → values;  source: the file's name in errors

    Raises: UsageError if nothing fits, or if a shape differs in another layer than the last
    """
    head = head_of(graph)
    prefix = "" if any(name in shapes for each in wanted for name in each.names) else common_prefix(shapes)
    shapes = {name.removeprefix(prefix): shape for name, shape in shapes.items()}
    weights, new, used, differing = {}, [], set(), []
    for each in wanted:
        name = next((name for name in each.names if name in shapes), None)
        if name is None:
            new.append(each.name)
            continue
        used.add(name)
        if _core(shapes[name]) == _core(each.shape):
            weights[each.name] = each.convert(read(prefix + name).reshape(each.shape))
            continue
        wanted_shape, file_shape = format_shape(each.shape), format_shape(shapes[name])
        if head is not None and each.layer == head.name:
            new.append(f"{each.name} ({wanted_shape}, there {file_shape})")
        else:
            differing.append(f"{each.name} is {wanted_shape}, there {file_shape}")
    if differing:
        raise UsageError(
            f"--init {source} is of another network: {_listed(differing)}. Only the last layer may differ: give the "
            "--model that the weights are of (`ringtrain models list`)"
        )
    if not weights:
        asked = wanted[0].names[0]
        near = ", ".join(difflib.get_close_matches(asked, list(shapes), NEAREST, 0.0))
        raise UsageError(
            f"--init {source}: none of its {len(shapes)} names is one of this network, such as {asked!r} (nearest "
            f"there: {near}). Give the --model that the weights are of"
        )
    unused = [plain(name) for name in shapes if name not in used and not is_counter(name)]
    return Match(weights, len(wanted), tuple(new), tuple(unused), prefix)


def _core(shape: Shape) -> Shape:
    """A shape without axes of one element at its ends: a 1x1 convolution is a product."""
    others = [axis for axis, extent in enumerate(shape) if extent != 1]
    return tuple(shape[others[0] : others[-1] + 1]) if others else ()


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown


def read_weights(source: str, graph: Graph) -> Match:
    """Return the weights of a network in ``source``. Raises UsageError, CheckpointError."""
    path = Path(source)
    if path.suffix == SUFFIX:
        file = TensorFile(path)
        return match(graph, wanted_of_torch(graph), file.shapes, file.read, source)
    if path.suffix in PICKLES:
        raise UsageError(
            f"--init {path}: a file of torch.save may run programs when it is read. Convert it where it comes from: "
            f"python -c \"import torch, safetensors.torch as s; c = torch.load('{path}', weights_only=True); "
            "s.save_file(c.get('state_dict', c.get('model', c)), 'w.safetensors')\""
        )
    checkpoint = find_checkpoint(source, ranks=False).checkpoint
    return match(graph, wanted_here(graph), checkpoint.shapes, weights_for_use(checkpoint)[0].__getitem__, source)


def weights_for_use(checkpoint: Checkpoint, raw: bool = False) -> tuple[Mapping[str, np.ndarray], bool]:
    """Return the weights to evaluate, predict, export or begin with, and whether they are the average of ``--ema``;
    ``raw``: the weights of the last update in any case. There is no average before the first update."""
    averaged = not raw and EMA in checkpoint.optimizer and checkpoint.scalars.get("step", 0) > 0
    return (checkpoint.optimizer[EMA] if averaged else checkpoint.weights), averaged
