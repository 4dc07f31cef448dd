"""What came of an iteration."""

from dataclasses import dataclass

import numpy as np

from ringtrain.ops.machine import Mark
from ringtrain.transport.base import Handle


@dataclass(slots=True)
class Outcome:
    """Of one iteration, over all ranks: sum of losses and count of correct ones, of ``valid`` examples with a label,
    ``examples`` in all; ``stop`` where any rank was told to stop."""

    iteration: int
    examples: int
    loss_sum: float
    correct: int
    valid: int
    stop: bool


class Sums:
    """Loss, correct, valid and those that were told to stop, of one iteration, while they are summed over ranks.
    ``fetched``: when this rank's are in ``values``, 4 float64 on the host; ``pending``: the sum, once it was begun."""

    def __init__(self, values: np.ndarray):
        self.values = values
        self.iteration = self.examples = 0
        self.fetched: Mark | None = None
        self.pending: Handle | None = None

    def outcome(self) -> Outcome:
        loss, correct, valid, stop = self.values
        return Outcome(self.iteration, self.examples, float(loss), int(correct), int(valid), bool(stop))
