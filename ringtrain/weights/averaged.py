"""The weights of a checkpoint that evaluations, predictions and exports take: the average of ``--ema``, or the last."""

from collections.abc import Mapping

import numpy as np

from ringtrain.optim.optimizers import EMA
from ringtrain.storage.checkpoint.store import Checkpoint


def weights_for_use(checkpoint: Checkpoint, raw: bool = False) -> tuple[Mapping[str, np.ndarray], bool]:
    """Return the weights to evaluate, predict, export or begin with, and whether they are the average of ``--ema``;
    ``raw``: the weights of the last update in any case. There is no average before the first update."""
    averaged = not raw and EMA in checkpoint.optimizer and checkpoint.scalars.get("step", 0) > 0
    return (checkpoint.optimizer[EMA] if averaged else checkpoint.weights), averaged
