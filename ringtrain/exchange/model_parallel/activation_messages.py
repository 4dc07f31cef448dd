"""Messages of a pipeline: the activations of a micro-batch forward, and their gradient backward.

Forward, a message is {id, examples, labels, activations}; backward, {id, gradient}. An id is (iteration, place of the
rank that has the images, micro-batch). Between two ranks the messages of one place arrive in the order in which they
were sent, under the tag of that place, so the receiver knows the size of the next one; the id confirms that it is the
expected one.
"""

import time
from collections.abc import Callable

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import TransportError
from ringtrain.exchange import texts
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for

ID = 3  # numbers of an id

Id = tuple[int, int, int]


class ActivationMessage:
    """The memory of one message between this rank and ``peer``: examples of ``width`` numbers.

    about:  int64: the id, then the examples' indices in a message forward
    labels: int32; None in a message backward
    values: the activations, or their gradient
    """

    def __init__(self, peer: int, tag: int, width: int, about: Array, labels: Array | None, values: Array):
        self.peer, self.tag, self.width = peer, tag, width
        self.about, self.labels, self.values = about, labels, values
        self.handles: dict[tuple[bool, int], Handle] = {}  # by (is sent, examples)
        self.current: Handle | None = None

    def spans(self, count: int) -> list[Array]:
        """Return the arrays that travel for ``count`` examples."""
        values = self.values[: count * self.width]
        if self.labels is None:
            return [self.about[:ID], values]
        return [self.about[: ID + count], self.labels[:count], values]

    def examples(self, count: int) -> Array:
        return self.about[ID : ID + count]

    def array(self, count: int, shape: tuple[int, ...]) -> Array:
        """Return the activations of ``count`` examples. Shapes: → [count, *shape]"""
        return self.values[: count * self.width].reshape((count, *shape))


class ActivationChannel:
    """Sends and receives this rank's messages. ``bytes_sent`` and ``exposed_s``, the seconds it waited, are totals."""

    def __init__(self, transport: Transport, ops: Ops, deadline_s: float):
        self._transport, self._ops, self._deadline_s = transport, ops, deadline_s
        self._id = np.zeros(ID, np.int64)
        self.bytes_sent, self.exposed_s = 0, 0.0

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def forward(self, peer: int, tag: int, capacity: int, width: int) -> ActivationMessage:
        scratch = self._transport.scratch
        about, labels = scratch(ID + capacity, "int64"), scratch(capacity, "int32")
        return ActivationMessage(peer, tag, width, about, labels, self._values(capacity, width))

    def onward(self, came: ActivationMessage, peer: int, capacity: int, width: int) -> ActivationMessage:
        """Return a message to the next rank, with the examples of the one that came."""
        return ActivationMessage(peer, came.tag, width, came.about, came.labels, self._values(capacity, width))

    def back(self, peer: int, tag: int, capacity: int, width: int) -> ActivationMessage:
        return ActivationMessage(
            peer, tag, width, self._transport.scratch(ID, "int64"), None, self._values(capacity, width)
        )

    def _values(self, capacity: int, width: int) -> Array:
        return self._transport.scratch(capacity * width, self._ops.active)

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────
    def address(self, message: ActivationMessage, id: Id) -> None:
        self._id[:] = id
        self._ops.upload(self._id, message.about[:ID])

    def send(self, message: ActivationMessage, count: int) -> None:
        """Send ``count`` examples. Leave the memory alone until :meth:`wait`, or until the answer has come."""
        self._start(message, True, count)
        self.bytes_sent += sum(span.size * span.dtype.itemsize for span in message.spans(count))

    def expect(self, message: ActivationMessage, count: int) -> None:
        """Receive ``count`` examples."""
        self._start(message, False, count)

    def _start(self, message: ActivationMessage, sent: bool, count: int) -> None:
        self._ops.synchronize()
        handle = message.handles.get((sent, count))
        if handle is None:
            moves = [(message.peer, span) for span in message.spans(count)]
            prepare = self._transport.sends if sent else self._transport.recvs
            handle = message.handles[sent, count] = prepare(moves, message.tag)
        message.current = handle
        handle.start()

    def wait(self, message: ActivationMessage) -> None:
        """Wait until the last move of this message is done."""
        if message.current is not None and not message.current.test():
            began = time.perf_counter()
            message.current.wait(self._deadline_s)
            self.exposed_s += time.perf_counter() - began

    def wait_until(self, come: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """Wait until ``come()`` is true; ``awaited()`` names the awaited peers and messages for StalledError."""
        began = time.perf_counter()
        wait_for(come, self._deadline_s, awaited, patience=self._transport.patience)
        self.exposed_s += time.perf_counter() - began

    def check(self, message: ActivationMessage, id: Id) -> None:
        """Raises TransportError unless the message that has come has this id."""
        found = tuple(self._ops.to_host(message.about[:ID]).tolist())
        if found != id:
            raise TransportError(
                texts.OTHER_MESSAGE(rank=message.peer, found=describe_id(found), wanted=describe_id(id))
            )


def describe_id(id: Id) -> str:
    iteration, place, micro = id
    return texts.MICRO_BATCH(micro=micro, rank=place, iteration=iteration + 1)
