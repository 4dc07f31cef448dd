"""The weights that ``--init`` names: a safetensors file, a checkpoint or a run folder; and the weights of a checkpoint
that are used, the average of ``--ema``, or the last."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ringtrain.errors import UsageError
from ringtrain.nn.graph import Graph
from ringtrain.optim.optimizers import EMA
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.run_folder.run_folder import find_checkpoint
from ringtrain.weights.matching import Match, match, wanted_here, wanted_of_torch
from ringtrain.weights.tensor_file import SUFFIX, TensorFile

PICKLES = (".pth", ".pt", ".bin", ".pkl", ".ckpt")


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
