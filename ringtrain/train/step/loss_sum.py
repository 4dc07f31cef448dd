"""Sums over ranks the loss of each iteration, and the ranks that have to stop, while backward runs.

    one part a rank   [loss correct valid | stop]                             added in the MPI's order
    shards            [loss correct valid | loss correct valid | … | stop]    a row a shard, zeros on other ranks

A shard's row is zero on all ranks but one, so the sum over ranks is exact in any order; rows are then added in their
order. So a loss has the same bits at any number of ranks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.data.batches.batches import Batch
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.ops.base import Mark, Ops
from ringtrain.transport.base import Handle, Transport


@dataclass(slots=True)
class IterationLoss:
    """The sums of one iteration over all ranks: losses and correct answers of the ``valid`` examples with a label.
    ``examples``: all of them; ``stop``: whether any rank has to stop."""

    iteration: int
    examples: int
    loss_sum: float
    correct: int
    valid: int
    stop: bool


class LossBuffer:
    """One iteration's rows of (loss, correct, valid), then the number of ranks that have to stop, in ``values``,
    float64 on the host. ``fetched``: the end of their copy from the device;
    ``pending``: their sum over ranks; None for a rank that has no others."""

    def __init__(self, values: np.ndarray):
        self.values = values
        self.iteration = self.examples = 0
        self.fetched: Mark
        self.pending: Handle | None

    def outcome(self) -> IterationLoss:
        loss, correct, valid = in_order(self.values[:-1].reshape(-1, 3))
        return IterationLoss(self.iteration, self.examples, loss, int(correct), int(valid), bool(self.values[-1]))


def in_order(rows: np.ndarray) -> list[float]:
    """Add rows in their order. Shapes: [rows, n] → n"""
    totals = [0.0] * rows.shape[1]
    for row in rows.tolist():
        totals = [total + number for total, number in zip(totals, row, strict=True)]
    return totals


class LossAllReduce:
    """Sums of up to ``window`` + 1 iterations are under way at once. ``rows``: parts of a batch with sums of their own;
    ``stop_requested()``: called once an iteration. ``scale``: its numbers are looked at with each loss."""

    def __init__(
        self,
        ops: Ops,
        transport: Transport,
        stop_requested: Callable[[], bool],
        window: int,
        rows: int,
        deadline_s: float,
        scale: LossScale | None = None,
    ):
        self._ops, self._transport, self._stop_requested, self._scale = ops, transport, stop_requested, scale
        self._window, self.deadline_s = window, deadline_s
        self._rows = ops.zeros((3 * rows,), "float64")
        self._spare = [LossBuffer(ops.pinned((3 * rows + 1,), "float64")) for _ in range(window + 1)]
        self._fetching: LossBuffer | None = None  # until its sum over ranks starts
        self._under_way: deque[LossBuffer] = deque()  # oldest first

    def begin(self) -> None:
        self._ops.fill(self._rows, 0)

    def row(self, number: int) -> Array:
        """The device array of one part, to which the loss adds (loss, correct, valid)."""
        return self._rows[3 * number : 3 * number + 3]

    def fetch(self, batch: Batch) -> None:
        """Fetch the rows after forward. A device gets the work of backward before :meth:`send` waits for them."""
        self.send()
        sums = self._fetching = self._spare.pop()
        self._ops.fetch(self._rows, sums.values[:-1])
        if self._scale is not None:
            self._scale.fetch()
        sums.fetched = self._ops.mark()
        sums.iteration, sums.examples = batch.iteration, batch.total
        if not self._ops.records:
            self.send()

    def send(self) -> None:
        """Start the sum over ranks, unless it has started: before the backward pass exchanges anything, so that all
        ranks have one order."""
        if self._fetching is None:
            return
        sums, self._fetching = self._fetching, None
        sums.fetched.wait()
        if self._scale is not None:
            self._scale.look()
        sums.values[-1] = self._stop_requested()
        sums.pending = self._transport.native_allreduce_start(sums.values) if self._transport.size > 1 else None
        self._under_way.append(sums)

    def __len__(self) -> int:
        return len(self._under_way) + (self._fetching is not None)

    @property
    def due(self) -> bool:
        """Whether the oldest outcome is due before the next iteration."""
        return len(self) > self._window

    def next_outcome(self) -> IterationLoss:
        """Wait for the oldest sums, and return their outcome."""
        if not self._under_way:
            self.send()
        sums = self._under_way.popleft()
        if sums.pending is not None:
            sums.pending.wait(self.deadline_s)
        self._spare.append(sums)
        return sums.outcome()

    def own(self, batch: Batch) -> IterationLoss:
        """The outcome of this rank's part alone."""
        sums = self._spare[0]
        self._ops.download(self._rows, sums.values[:-1])
        sums.values[-1] = self._stop_requested()
        sums.iteration, sums.examples = batch.iteration, batch.total
        return sums.outcome()

    def pending(self) -> list[Handle]:
        """The sums under way, oldest first."""
        return [sums.pending for sums in self._under_way if sums.pending is not None]
