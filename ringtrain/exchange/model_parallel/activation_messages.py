"""Messages of a pipeline: the activations of a micro-batch forward, and their gradient backward.

Forward travel {examples, labels, activations}, backward {sums of the loss, gradient}. All ranks have one list of
micro-batches, so that a message has no name: between two ranks those of one place arrive in the order of the list.

The ranks of a group divide the rows of a message; between two groups each row goes from the rank that has it to the
rank that needs it:

    4 rows    rank 0 ── rows 0:2 ──► rank 4        a group of one rank, and one of two that divide columns
                     └─ rows 2:4 ──► rank 5
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.memory.spans import Shape
from ringtrain.nn.losses import ONE_CLASS_NUMBER, LabelForm
from ringtrain.nn.shapes import element_count
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import peers as named
from ringtrain.transport.waiting import wait_for

SUMS = 3  # loss, correct, valid
FORWARD, BACKWARD, TAGS = 0, 1, 2  # tags of a place


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of a message that this rank has: part ``index`` of ``size``."""

    index: int = 0
    size: int = 1

    def cut(self, rows: int) -> tuple[int, int]:
        """Return (start, stop) of this rank's rows."""
        edges = bounds(rows, self.size)
        return edges[self.index], edges[self.index + 1]

    def count(self, rows: int) -> int:
        """Return how many of ``rows`` this rank has."""
        start, stop = self.cut(rows)
        return stop - start

    def shared(self, rows: int, others: int) -> Iterator[tuple[int, int, int]]:
        """Yield (other, start, stop) for each rank of a group of ``others`` that has rows start:stop of this rank's,
        counted from its first."""
        first, last = self.cut(rows)
        for other, (start, stop) in enumerate(pairwise(bounds(rows, others))):
            if max(first, start) < min(last, stop):
                yield other, max(first, start) - first, min(last, stop) - first


class ActivationMessage:
    """The memory of one message between this rank's rows and ``peers``, the ranks of a neighbouring group.

    forward:  ``examples`` int64, ``labels`` [n, ...], ``values`` of ``shape`` an example
    backward: ``reports`` float64, of each peer {loss, correct, valid}, and ``values``
    """

    def __init__(self, peers: Sequence[int], tag: int, rows: GroupRows, shape: Shape, values: Array):
        self.peers, self.tag, self.rows, self.shape, self.values = tuple(peers), tag, rows, shape, values
        self.width = element_count(shape)
        self.examples: Array | None = None
        self.labels: Array | None = None
        self.reports = np.zeros((len(self.peers), SUMS))
        self.handles: dict[tuple[bool, int], Handle] = {}  # by (is sent, rows)
        self.current: Handle | None = None

    def moves(self, rows: int) -> list[tuple[int, Array]]:
        """Return (peer, span) of each span that travels for a message of ``rows``."""
        moves = []
        for other, start, stop in self.rows.shared(rows, len(self.peers)):
            values = self.values[start * self.width : stop * self.width]
            if self.examples is None or self.labels is None:
                spans = [self.reports[other], values]
            else:
                labels = self.labels[start:stop]
                spans = [self.examples[start:stop], labels.reshape((labels.size,)), values]
            moves += [(self.peers[other], span) for span in spans]
        return moves

    def array(self, rows: int) -> Array:
        """Return this rank's activations of a message of ``rows``. Shapes: → [n, *shape]"""
        count = self.rows.count(rows)
        return self.values[: count * self.width].reshape((count, *self.shape))

    def batch(self, rows: int) -> tuple[Array, Array]:
        """Return the examples and labels of this rank's rows of a message forward."""
        assert self.examples is not None and self.labels is not None, "a message forward"
        count = self.rows.count(rows)
        return self.examples[:count], self.labels[:count]

    def report(self, rows: int, sums: np.ndarray) -> None:
        """Write the sums of this rank's rows; they go to one peer alone."""
        self.reports[:] = 0
        for other, _, _ in self.rows.shared(rows, len(self.peers)):
            self.reports[other] = sums
            return

    def sums(self, rows: int) -> np.ndarray:
        """Return the sums of the reports that have come."""
        others = [other for other, _, _ in self.rows.shared(rows, len(self.peers))]
        return sum((self.reports[other] for other in others), np.zeros(SUMS))


class Crossing(NamedTuple):
    """The two messages of a micro-batch between neighbouring groups: its activations and their gradient."""

    forward: ActivationMessage
    back: ActivationMessage


class ActivationChannel:
    """Sends and receives this rank's messages. ``bytes_sent`` and ``exposed_s``, the seconds it waited, are totals."""

    def __init__(self, transport: Transport, ops: Ops, deadline_s: float):
        self._transport, self._ops, self.deadline_s = transport, ops, deadline_s
        self.bytes_sent, self.exposed_s = 0, 0.0

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def crossing(
        self,
        peers: Sequence[int],
        place: int,
        rows: GroupRows,
        capacity: int,
        shape: Shape,
        labels: LabelForm = ONE_CLASS_NUMBER,
        came: Crossing | None = None,
    ) -> Crossing:
        """Return the memory of messages of up to ``capacity`` rows: with labels of this form, or with the examples and
        labels of those that ``came``."""
        scratch, count = self._transport.scratch, rows.count(capacity)
        size = count * element_count(shape)
        crossing = Crossing(
            *(
                ActivationMessage(peers, place * TAGS + tag, rows, shape, scratch(size, self._ops.active))
                for tag in (FORWARD, BACKWARD)
            )
        )
        forward = crossing.forward
        if came is not None:
            forward.examples, forward.labels = came.forward.examples, came.forward.labels
            return crossing
        forward.examples = scratch(count, "int64")
        flat = scratch(count * element_count(labels.shape), self._ops.dtype if labels.values else np.dtype("int32"))
        forward.labels = flat.reshape((count, *labels.shape))
        return crossing

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────
    def send_on(self, crossing: Crossing, rows: int, y: Array) -> None:
        """Send activations ``y`` of a message of ``rows`` forward, and expect their gradient."""
        self._ops.copy(y, crossing.forward.array(rows))
        self.expect(crossing.back, rows)
        self.send(crossing.forward, rows)

    def answer(self, crossing: Crossing, rows: int, name: str) -> tuple[Array, np.ndarray]:
        """Wait for the gradient of the activations, and the sums of the loss. ``name``: of the micro-batch."""
        self.wait(crossing.back, name)
        self.wait(crossing.forward, name)
        return crossing.back.array(rows), crossing.back.sums(rows)

    def send_back(self, crossing: Crossing, rows: int, dx: Array, sums: np.ndarray, name: str) -> None:
        """Send the gradient ``dx`` of the activations that came, and the sums of the loss."""
        back = crossing.back
        self.wait(back, name)
        back.report(rows, sums)
        self._ops.copy(dx, back.array(rows))
        self.send(back, rows)

    def send(self, message: ActivationMessage, rows: int) -> None:
        """Send a message of ``rows``. Leave the memory alone until :meth:`wait`, or :meth:`answer`."""
        self._start(message, True, rows)
        self.bytes_sent += sum(span.size * span.dtype.itemsize for _, span in message.moves(rows))

    def expect(self, message: ActivationMessage, rows: int) -> None:
        """Receive a message of ``rows``."""
        self._start(message, False, rows)

    def _start(self, message: ActivationMessage, sent: bool, rows: int) -> None:
        self._ops.synchronize()
        handle = message.handles.get((sent, rows))
        if handle is None:
            prepare = self._transport.sends if sent else self._transport.recvs
            handle = message.handles[sent, rows] = prepare(message.moves(rows), message.tag)
        message.current = handle
        handle.start()

    def wait(self, message: ActivationMessage, name: str) -> None:
        """Wait until the last move of this message is done. ``name``: of the micro-batch, for StalledError."""
        handle = message.current
        if handle is None or handle.test():
            return
        began, patience = time.perf_counter(), self._transport.patience
        wait_for(handle.test, self.deadline_s, lambda: f"{named(message.peers)} with {name}", patience=patience)
        self.exposed_s += time.perf_counter() - began
