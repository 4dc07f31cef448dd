"""Messages of a pipeline: the activations of a micro-batch on their way forward, and their gradient on its way back.

Forward, a message is {id, examples, labels, activations}; backward, {id, gradient}. An id is (iteration, place of the
rank that the images are on, micro-batch). Between two ranks messages of one place arrive in the order in which they
were sent, under a tag of that place, so that whoever receives knows how large the next one is; the id says whether it
is the one that was due.
"""

import time
from collections.abc import Callable

import numpy as np

from ringtrain.errors import TransportError
from ringtrain.exchange import texts
from ringtrain.transport.base import Handle, Transport
from ringtrain.transport.waiting import wait_for

ID = 3  # numbers of an id

Id = tuple[int, int, int]


class ActivationMessage:
    """The memory of one message between this rank and ``peer``, of up to ``capacity`` examples of ``width`` numbers.

    about:  int64: the id, and the examples' indices behind it where the message goes forward
    labels: int32; None where it goes back
    values: the activations, or their gradient
    """

    def __init__(self, peer: int, tag: int, width: int, about, labels, values):
        self.peer, self.tag, self.width = peer, tag, width
        self.about, self.labels, self.values = about, labels, values
        self.handles: dict[tuple[bool, int], Handle] = {}  # by whether it is sent, and how many examples it has
        self.current: Handle | None = None

    def spans(self, count: int) -> list:
        """What travels of ``count`` examples."""
        values = self.values[: count * self.width]
        if self.labels is None:
            return [self.about[:ID], values]
        return [self.about[: ID + count], self.labels[:count], values]

    def examples(self, count: int):
        return self.about[ID : ID + count]

    def array(self, count: int, shape: tuple[int, ...]):
        """The activations of ``count`` examples. Shapes: → [count, *shape]"""
        return self.values[: count * self.width].reshape((count, *shape))


class ActivationChannel:
    """This rank's messages. ``bytes_sent`` and ``exposed_s``, how long it waited, of all that ever were."""

    def __init__(self, transport: Transport, ops, deadline_s: float):
        self._transport, self._ops, self._deadline_s = transport, ops, deadline_s
        self._id = np.zeros(ID, np.int64)
        self.bytes_sent, self.exposed_s = 0, 0.0

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────
    def forward(self, peer: int, tag: int, capacity: int, width: int) -> ActivationMessage:
        scratch = self._transport.scratch
        about, labels = scratch(ID + capacity, "int64"), scratch(capacity, "int32")
        return ActivationMessage(peer, tag, width, about, labels, self._values(capacity, width))

    def onward(self, came: ActivationMessage, peer: int, capacity: int, width: int) -> ActivationMessage:
        """To the next rank, about the same examples as what came."""
        return ActivationMessage(peer, came.tag, width, came.about, came.labels, self._values(capacity, width))

    def back(self, peer: int, tag: int, capacity: int, width: int) -> ActivationMessage:
        return ActivationMessage(
            peer, tag, width, self._transport.scratch(ID, "int64"), None, self._values(capacity, width)
        )

    def _values(self, capacity: int, width: int):
        return self._transport.scratch(capacity * width, self._ops.active)

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────
    def address(self, letter: ActivationMessage, id: Id) -> None:
        self._id[:] = id
        self._ops.upload(self._id, letter.about[:ID])

    def send(self, letter: ActivationMessage, count: int) -> None:
        """The letter's memory is the message's until :meth:`wait`, or until the answer has come."""
        self._start(letter, True, count)
        self.bytes_sent += sum(span.size * span.dtype.itemsize for span in letter.spans(count))

    def expect(self, letter: ActivationMessage, count: int) -> None:
        """Be ready for a message of ``count`` examples."""
        self._start(letter, False, count)

    def _start(self, letter: ActivationMessage, sent: bool, count: int) -> None:
        self._ops.synchronize()
        handle = letter.handles.get((sent, count))
        if handle is None:
            moves = [(letter.peer, span) for span in letter.spans(count)]
            prepare = self._transport.sends if sent else self._transport.recvs
            handle = letter.handles[sent, count] = prepare(moves, letter.tag)
        letter.current = handle
        handle.start()

    def wait(self, letter: ActivationMessage) -> None:
        """Until the last move of this letter is done."""
        if letter.current is not None and not letter.current.test():
            began = time.perf_counter()
            letter.current.wait(self._deadline_s)
            self.exposed_s += time.perf_counter() - began

    def wait_until(self, come: Callable[[], bool], awaited: Callable[[], str]) -> None:
        """``awaited()``: for whom and what, where nothing comes in time."""
        began = time.perf_counter()
        wait_for(come, self._deadline_s, awaited, patience=self._transport.patience)
        self.exposed_s += time.perf_counter() - began

    def check(self, letter: ActivationMessage, id: Id) -> None:
        """Raises TransportError unless the message that has come is the one that was due."""
        found = tuple(self._ops.to_host(letter.about[:ID]).tolist())
        if found != id:
            raise TransportError(texts.OTHER_MESSAGE(rank=letter.peer, found=say(found), wanted=say(id)))


def say(id: Id) -> str:
    iteration, place, micro = id
    return texts.MICRO_BATCH(micro=micro, rank=place, iteration=iteration + 1)
