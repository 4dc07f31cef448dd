"""The weights that ``--init`` names: a safetensors file, a checkpoint or a run folder."""

from pathlib import Path

from ringtrain.errors import UsageError
from ringtrain.nn.graph import Graph
from ringtrain.storage.run_folder.run_folder import find_checkpoint
from ringtrain.weights.averaged import weights_for_use
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
            f"python -c \"import torch, safetensors.torch as s; s.save_file(torch.load('{path}', weights_only=True), "
            "'w.safetensors')\""
        )
    checkpoint = find_checkpoint(source, ranks=False).checkpoint
    return match(graph, wanted_here(graph), checkpoint.shapes, weights_for_use(checkpoint)[0].__getitem__, source)
