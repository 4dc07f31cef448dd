"""Sums the loss of each iteration, and the ranks that have to stop, over ranks while backward runs.

    one part a rank   [loss correct valid | stop]                             added as the MPI likes
    shards            [loss correct valid | loss correct valid | … | stop]    a row each, zeros where others have it

Where a batch is cut into shards, a row has one rank's numbers and zeros, so that the sum over ranks is exact, whoever
adds first; rows are then added in their order. A loss has the same bits at any number of ranks.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from ringtrain.data.batches.batches import Batch
from ringtrain.ops.base import Ops
from ringtrain.ops.machine import Mark
from ringtrain.transport.base import Handle, Transport


@dataclass(slots=True)
class IterationLoss:
    """Of one iteration, over all ranks: sum of losses and count of correct ones, of ``valid`` examples with a label,
    ``examples`` in all; ``stop``: whether any rank has to stop."""

    iteration: int
    examples: int
    loss_sum: float
    correct: int
    valid: int
    stop: bool


class LossBuffer:
    """Rows of (loss, correct, valid), and then how many were told to stop, of one iteration, while they are summed over
    ranks. ``fetched``: when this rank's are in ``values``, float64 on the host; ``pending``: the sum, once it was
    begun."""

    def __init__(self, values: np.ndarray):
        self.values = values
        self.iteration = self.examples = 0
        self.fetched: Mark | None = None
        self.pending: Handle | None = None

    def outcome(self) -> IterationLoss:
        loss, correct, valid = in_order(self.values[:-1].reshape(-1, 3))
        return IterationLoss(self.iteration, self.examples, loss, int(correct), int(valid), bool(self.values[-1]))


def in_order(rows: np.ndarray) -> list[float]:
    """The sum of rows, one after another. Shapes: [rows, n] → n"""
    totals = [0.0] * rows.shape[1]
    for row in rows.tolist():
        totals = [total + number for total, number in zip(totals, row, strict=True)]
    return totals


class LossAllReduce:
    """``window``: how many iterations may be under way besides the last; ``rows``: parts of a batch that are summed by
    themselves; ``stop_requested``: asked once an iteration."""

    def __init__(self, ops: Ops, transport: Transport, stop_requested, window: int, rows: int, deadline_s: float):
        self._ops, self._transport, self._told_to_stop = ops, transport, stop_requested
        self._window, self._deadline_s = window, deadline_s
        self._rows = ops.zeros((3 * rows,), "float64")
        self._spare = [LossBuffer(ops.pinned((3 * rows + 1,), "float64")) for _ in range(window + 1)]
        self._under_way: deque[LossBuffer] = deque()  # oldest first

    def begin(self) -> None:
        self._ops.fill(self._rows, 0)

    def row(self, number: int):
        """The device array of one part, to which (loss, correct, valid) are added."""
        return self._rows[3 * number : 3 * number + 3]

    def share(self, batch: Batch) -> None:
        """Rows leave the device when forward is done. A device is given backward to do before they are waited for."""
        sums = self._spare.pop()
        self._ops.fetch(self._rows, sums.values[:-1])
        sums.fetched, sums.pending = self._ops.mark(), None
        sums.iteration, sums.examples = batch.iteration, batch.total
        self._under_way.append(sums)
        if not self._ops.records:
            self.send()

    def send(self) -> None:
        """Before anything else is exchanged of this backward pass: in one order on all ranks."""
        if not self._under_way or self._under_way[-1].pending is not None:
            return
        sums = self._under_way[-1]
        sums.fetched.wait()
        sums.values[-1] = self._told_to_stop()
        sums.pending = self._transport.native_allreduce_start(sums.values)

    def __len__(self) -> int:
        """Iterations whose outcome was not returned yet."""
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether the oldest outcome is due before another iteration begins."""
        return len(self._under_way) > self._window

    def next_outcome(self) -> IterationLoss:
        """Wait for the oldest sums; their outcome."""
        sums = self._under_way.popleft()
        sums.pending.wait(self._deadline_s)
        self._spare.append(sums)
        return sums.outcome()

    def own(self, batch: Batch) -> IterationLoss:
        """The outcome of this rank's part alone."""
        sums = self._spare[0]
        self._ops.download(self._rows, sums.values[:-1])
        sums.values[-1] = self._told_to_stop()
        sums.iteration, sums.examples = batch.iteration, batch.total
        return sums.outcome()

    def pending(self) -> list[Handle]:
        """The sums that are under way, oldest first."""
        return [sums.pending for sums in self._under_way]
