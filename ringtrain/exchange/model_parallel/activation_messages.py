"""Messages of a pipeline: the activations of a micro-batch forward, and their gradient backward.

Forward, a header precedes the message {examples, labels, activations}; backward goes {report, gradient}, and a report
has the sums of the loss. Both name the micro-batch by its id: (iteration, place of the rank that has the images, micro-
batch). Between two ranks the messages of one place arrive in the order in which they were sent.

The ranks of a group divide the rows of a message; between two groups each row goes from the rank that has it to the
rank that needs it:

    4 rows    rank 0 ── rows 0:2 ──► rank 4        a group of one rank, and one of two that divide columns
                     └─ rows 2:4 ──► rank 5
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives.schedule import bounds
from ringtrain.errors import TransportError
from ringtrain.exchange.announcements import Announcements, Announcer
from ringtrain.memory.spans import Shape
from ringtrain.nn.losses import ONE_CLASS_NUMBER, LabelForm
from ringtrain.nn.shapes import element_count
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for

ID, SUMS = 3, 3  # numbers of an id; loss, correct, valid
GOODBYE = -1  # in place of a count: no message comes until the next meeting is over
HEADERS, FORWARD, BACKWARD, TAGS = 0, 1, 2, 3  # tags of a place

Id = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes a message. count: its examples; total, valid: examples of the iteration's batch, and the labelled
    ones."""

    iteration: int
    place: int
    micro: int
    count: int
    total: int = 0
    valid: int = 0

    @property
    def id(self) -> Id:
        return self.iteration, self.place, self.micro


HEADER = len(fields(Header))


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
    backward: ``reports`` float64, of each peer {id, loss, correct, valid}, and ``values``
    """

    def __init__(self, peers: Sequence[int], tag: int, rows: GroupRows, shape: Shape, values: Array):
        self.peers, self.tag, self.rows, self.shape, self.values = tuple(peers), tag, rows, shape, values
        self.width = element_count(shape)
        self.examples: Array | None = None
        self.labels: Array | None = None
        self.reports = np.zeros((len(self.peers), ID + SUMS))
        self.handles: dict[tuple[bool, int], Handle] = {}  # by (is sent, rows)
        self.current: Handle | None = None

    @property
    def has_come(self) -> bool:
        """Whether the last move of this message is done."""
        return self.current is not None and self.current.test()

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

    def report(self, id: Id, rows: int, sums: np.ndarray) -> None:
        """Write the id and the sums of this rank's rows; the sums go to one peer alone."""
        self.reports[:] = (*id, *(0,) * SUMS)
        for other, _, _ in self.rows.shared(rows, len(self.peers)):
            self.reports[other, -SUMS:] = sums
            return

    def sums(self, id: Id, rows: int) -> np.ndarray:
        """Return the sums of the reports that have come. Raises TransportError unless they have this id."""
        sums = np.zeros(SUMS)
        for other, _, _ in self.rows.shared(rows, len(self.peers)):
            check_id(self.peers[other], tuple(map(int, self.reports[other, :-SUMS])), id)
            sums += self.reports[other, -SUMS:]
        return sums


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

    def headers_to(self, peers: Sequence[int], place: int) -> Announcer:
        """Return the headers of one place, to all ranks of the next group."""
        return Announcer(self._transport, peers, place * TAGS + HEADERS, self.deadline_s, HEADER)

    def headers_from(self, peer: int, place: int) -> Announcements:
        return Announcements(self._transport, peer, place * TAGS + HEADERS, HEADER)

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────
    def announce(self, headers: Announcer, header: Header) -> None:
        headers.send(*astuple(header))
        self.bytes_sent += headers.nbytes

    def say_goodbye(self, headers: Announcer, place: int) -> None:
        """Tell the ranks of the next group that no message of ``place`` comes until the next meeting is over."""
        self.announce(headers, Header(0, place, 0, GOODBYE))
        headers.wait()

    def send_on(self, crossing: Crossing, header: Header, y: Array, headers: Announcer | None) -> None:
        """Send activations ``y`` forward, and expect their gradient; ``headers``: None where another rank announces."""
        self._ops.copy(y, crossing.forward.array(header.count))
        self.expect(crossing.back, header.count)
        if headers is not None:
            self.announce(headers, header)
        self.send(crossing.forward, header.count)

    def answer(self, crossing: Crossing, header: Header) -> tuple[Array, np.ndarray]:
        """Return the gradient that has come for the activations, and the sums of the loss."""
        sums = crossing.back.sums(header.id, header.count)
        self.wait(crossing.forward)
        return crossing.back.array(header.count), sums

    def send(self, message: ActivationMessage, rows: int) -> None:
        """Send a message of ``rows``. Leave the memory alone until :meth:`wait`, or until the answer has come."""
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

    def wait(self, message: ActivationMessage) -> None:
        """Wait until the last move of this message is done."""
        if message.current is not None and not message.current.test():
            began = time.perf_counter()
            message.current.wait(self.deadline_s)
            self.exposed_s += time.perf_counter() - began

    def wait_until(self, come: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Wait until ``come()`` is true; ``awaited()`` names the awaited peers and messages for StalledError."""
        began = time.perf_counter()
        wait_for(come, self.deadline_s, awaited, patience=self._transport.patience)
        self.exposed_s += time.perf_counter() - began


def check_id(rank: int, received: tuple[int, ...], wanted: Id) -> None:
    """Raises TransportError unless rank ``rank`` has sent the wanted micro-batch."""
    if received != wanted:
        raise TransportError(
            f"rank {rank} sent {describe_id(received)} instead of {describe_id(wanted)}: the ranks do not run the same "
            "messages"
        )


def describe_id(id: tuple[int, ...]) -> str:
    iteration, place, micro = id
    return f"micro-batch {micro} of rank {place} in iteration {iteration + 1}"
