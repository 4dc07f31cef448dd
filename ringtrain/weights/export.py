"""Exports the weights of a checkpoint: a safetensors file, or an ONNX graph."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringtrain import __version__
from ringtrain.errors import UsageError
from ringtrain.nn import spec
from ringtrain.nn.graph import Graph
from ringtrain.nn.spec import InputSpec, ModelSpec, centred
from ringtrain.storage import files
from ringtrain.storage.checkpoint.store import Checkpoint, check_parameters
from ringtrain.storage.run_folder.run_folder import find_checkpoint
from ringtrain.weights import onnx_model, tensor_file
from ringtrain.weights.layouts import torch_parameters
from ringtrain.weights.matching import wanted_of_torch, weights_for_use
from ringtrain.weights.names import COUNTER, timm_form


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and of which checkpoint. ``averaged``: whether it is the average of weights; ``skipped``: a
    sentence on each newer, damaged checkpoint"""

    path: Path
    tensors: int
    model: str
    iteration: int
    averaged: bool
    skipped: tuple[str, ...]


def export(target: str, out: Path, best: bool, force: bool, raw: bool = False) -> Exported:
    """Write the weights of a checkpoint or a run's folder to ``out``, by its suffix. ``raw``: the weights of the last
    update, also of a run with an average of weights. Raises RingtrainError."""
    if out.suffix not in (tensor_file.SUFFIX, onnx_model.SUFFIX):
        raise UsageError(f"-o {out}: give a file .safetensors or .onnx")
    if os.path.lexists(out) and not force:
        raise UsageError(f"{out} is there already: give another -o, or --force to replace it")
    source = find_checkpoint(target, best, ranks=False)
    checkpoint = source.checkpoint
    model = spec.parse_model(checkpoint.model, checkpoint.model_name, str(source.path))
    graph = model.graph()
    check_parameters(checkpoint, {name: p.shape for name, p in graph.parameters()}, str(source.path))
    weights, averaged = weights_for_use(checkpoint, raw)
    if out.suffix == tensor_file.SUFFIX:
        tensors = to_torch(graph, weights, checkpoint.iteration)
        tensor_file.write_tensors(out, tensors, _about(model, checkpoint))
        count = len(tensors)
    else:
        prepared = _prepared(model, checkpoint, source.path)
        unit = model.output.unit(graph.shapes[graph.output], checkpoint.inputs.get("label_moments"))
        onnx_file = onnx_model.make_onnx(graph, weights, prepared, _about(model, checkpoint), unit)
        files.write(out, onnx_file.SerializeToString())
        count = len(weights)
    return Exported(source.path, count, model.name, checkpoint.iteration, averaged, tuple(source.skipped))


def to_torch(graph: Graph, weights: Mapping[str, np.ndarray], iteration: int = 0) -> dict[str, np.ndarray]:
    """Return weights in PyTorch's names and layouts; torchvision's or timm's where the layers have their names. A
    BatchNorm has its count of batches too, which is ``iteration``."""
    names = {each.name: each.names[0] for each in wanted_of_torch(graph)}
    tensors: dict[str, np.ndarray] = {}
    for each in torch_parameters(graph):
        name, shape = names[each.name], timm_form(f"{each.layer}.{each.suffix}", each.shape)[1]
        tensors[name] = each.to_torch(weights[each.name]).reshape(shape)
        if each.suffix == "running_var":
            tensors[f"{name.removesuffix(each.suffix)}{COUNTER}"] = np.array(iteration, np.int64)
    return tensors


def _about(model: ModelSpec, checkpoint: Checkpoint) -> dict[str, str]:
    """What a file says of itself: every value a text."""
    about = {
        "format": "pt",  # the order of axes, as other programs name it
        "ringtrain": __version__,
        "model": model.name,
        "model_file": model.text,
        "iteration": str(checkpoint.iteration),
        "classes": json.dumps(list(checkpoint.classes), ensure_ascii=False),
    }
    for name in ("mean", "std", "label_moments"):
        if name in checkpoint.inputs:
            about[name] = json.dumps(checkpoint.inputs[name].tolist())
    return about


def _prepared(model: ModelSpec, checkpoint: Checkpoint, path: Path) -> onnx_model.Preparation:
    """(x - mean) · scale, as the run prepared its images."""
    input_spec, inputs = model.input, checkpoint.inputs
    if (input_spec.mean, input_spec.std) != ("none", "none") and not inputs:
        raise UsageError(
            f"checkpoint {path} is of an earlier version, which did not keep the mean of the training images, and "
            f"model {model.name!r} subtracts it: go on with the run by --resume, for one iteration, and export that"
        )
    std = inputs.get("std", np.ones(input_spec.shape[-1:]))
    return onnx_model.Preparation(_mean(input_spec, inputs), input_spec.factors(std))


def _mean(input_spec: InputSpec, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    if input_spec.mean == "channel":
        return np.asarray(inputs["mean"], np.float64)
    if input_spec.mean == "image":
        return centred(np.asarray(inputs["mean_image"], np.float64), input_spec.shape, input_spec.shape)
    return np.zeros(input_spec.shape[-1:])
