"""What came of an iteration."""

from dataclasses import dataclass


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
