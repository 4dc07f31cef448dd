"""A server's side: the weights of its shard, to which it adds changes as they arrive, and which workers pull.

Weights are either sent or changed, never both: changes that arrive during a send wait for its end.
"""

from collections.abc import Sequence

from ringtrain.arrays import Array
from ringtrain.exchange.announcements import Announcements
from ringtrain.exchange.servers.staleness import StalenessClock
from ringtrain.memory.buckets import Bucket
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Handle, Transport

PUSH, GOODBYE = 1, 2  # announcements: an array follows; none follows until the next meeting is over
TAGS = 2  # of a mailbox: ``tag`` for announcements, ``tag + 1`` for arrays


class Mailbox:
    """Receives arrays of ``count`` elements from ``peer``, one after another, in ``array``. ``gone``: whether the peer
    has said goodbye, or is not listened to yet.

    No receive is from "any source". Only announcements, one number each, have a receive posted all the time. The
    receive of an array is posted after its announcement, and none after a goodbye: no message is left under way at a
    meeting.
    """

    def __init__(self, transport: Transport, peer: int, count: int, dtype, tag: int):
        self.array = transport.scratch(count, dtype)
        self._announced = Announcements(transport, peer, tag)
        self._coming = transport.recvs([(peer, self.array)], tag + 1)
        self._is_coming, self.gone = False, True

    def listen(self) -> None:
        """Receive the peer's next array; the last one has been read."""
        self._announced.listen()
        self.gone = False

    def has_arrived(self) -> bool:
        """Whether an array has arrived since the last call."""
        word = self._announced.arrived()
        if word == [GOODBYE]:
            self.gone = True
        elif word:
            self._coming.start()
            self._is_coming = True
        if not self._is_coming or not self._coming.test():
            return False
        self._is_coming = False
        return True


class ParameterShard:
    """Adds the changes of workers to its weights, and answers with the weights as the clock allows.

    buckets: of the shard, neighbours, the arena's lowest first
    clock:   of the workers, this rank perhaps among them
    tag:     the first of its tags; they are the same on all ranks, since no two servers use them to one another

    ``weights``: of the shard. ``answered``: whether this rank's own worker has pulled them since its last push.
    """

    def __init__(
        self, transport: Transport, ops: Ops, buckets: Sequence[Bucket], clock: StalenessClock, dtype, tag: int
    ):
        self._ops, self._rank, self.clock = ops, transport.rank, clock
        self.start, self.stop = buckets[0].start, buckets[-1].stop
        self.weights = transport.scratch(self.stop - self.start, dtype)
        others = [worker for worker in clock.clocks if worker != transport.rank]
        self._mailboxes = {peer: Mailbox(transport, peer, self.stop - self.start, dtype, tag) for peer in others}
        self._answers = {peer: self._prepare(transport, peer, buckets, tag + TAGS) for peer in others}
        self._sending: list[Handle] = []
        self._arrived: list[tuple[int, Array]] = []  # (worker, change)
        self.answered, self._pulled = True, self.weights[:0]
        self.bytes_sent = 0

    def _prepare(self, transport: Transport, peer: int, buckets: Sequence[Bucket], tag: int) -> list[Handle]:
        """A message a bucket: the peer computes with the first while the others arrive."""
        parts = [self.weights[bucket.start - self.start : bucket.stop - self.start] for bucket in buckets]
        return [transport.sends([(peer, part)], tag + index) for index, part in enumerate(parts)]

    def open(self, weights: Array) -> None:
        """Begin with these weights, flat over the arena, and receive changes from now on."""
        self._ops.copy(weights[self.start : self.stop], self.weights)
        self._ops.synchronize()
        for mailbox in self._mailboxes.values():
            mailbox.listen()

    def push(self, change: Array, pulled: Array) -> None:
        """Take a change of this rank's own worker, which leaves it alone until ``answered``. The weights go to
        ``pulled``."""
        self.answered, self._pulled = False, pulled
        self._arrived.append((self._rank, change))
        self.serve()

    def serve(self) -> None:
        """Add and answer, without waiting."""
        self._sending = [handle for handle in self._sending if not handle.test()]
        self._arrived += [(peer, box.array) for peer, box in self._mailboxes.items() if box.has_arrived()]
        if self._arrived and not self._sending:
            self._add()
            for worker in self.clock.release():
                self._answer(worker)

    def _add(self) -> None:
        for _, change in self._arrived:
            self._ops.add(self.weights, change, self.weights)
        self._ops.synchronize()
        for worker, _ in self._arrived:
            self.clock.arrive(worker)
            if worker != self._rank:
                self._mailboxes[worker].listen()
        self._arrived = []

    def _answer(self, worker: int) -> None:
        if worker == self._rank:
            self._ops.copy(self.weights, self._pulled)
            self._ops.synchronize()
            self.answered = True
            return
        for handle in self._answers[worker]:
            handle.start()
            self._sending.append(handle)
        self.bytes_sent += self.weights.size * self.weights.dtype.itemsize

    @property
    def present(self) -> list[int]:
        """The other workers that have not said goodbye."""
        return [peer for peer, mailbox in self._mailboxes.items() if not mailbox.gone]

    @property
    def quiet(self) -> bool:
        """Whether all other workers have said goodbye, and nothing is under way."""
        return not (self.present or self._arrived or self._sending)
