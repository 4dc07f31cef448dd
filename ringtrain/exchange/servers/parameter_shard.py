"""A server's side: the weights of its shard, into which it merges the changes of workers, and which workers pull.

The server sends a worker a copy of the weights, from the memory of the worker's change, which it has merged by then. So
its weights may change during a send, and no other worker waits for a slow link.
"""

from collections.abc import Sequence

import numpy as np

from ringtrain.arrays import Array
from ringtrain.exchange.servers.outer_merge import Change, OuterMerge
from ringtrain.exchange.servers.staleness import StalenessClock
from ringtrain.memory.buckets import Bucket
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Handle, Transport

PUSH, GOODBYE = 1, 2  # announcements: an array follows, of so many examples; none does until the next meeting is over
NUMBERS = 2  # of an announcement
TAGS = 2  # of a mailbox: ``tag`` for announcements, ``tag + 1`` for arrays


class Mailbox:
    """Receives arrays of ``count`` elements from ``peer``, one after another, in ``array``, each of so many
    ``examples``. ``gone``: whether the peer has said goodbye, or is not listened to yet.

    No receive is from "any source". Only announcements, two numbers each, have a receive posted all the time. The
    receive of an array is posted after its announcement, and none after a goodbye: no message is left under way at a
    meeting.
    """

    def __init__(self, transport: Transport, peer: int, count: int, dtype, tag: int):
        self.array = transport.scratch(count, dtype)
        self._numbers, self.examples = np.zeros(NUMBERS, np.int64), 0
        self._announced = transport.recvs([(peer, self._numbers)], tag)
        self._coming = transport.recvs([(peer, self.array)], tag + 1)
        self._listens, self._is_coming, self.gone = False, False, True

    def listen(self) -> None:
        """Receive the peer's next array; the last one has been read."""
        self._announced.start()
        self._listens, self.gone = True, False

    def has_arrived(self) -> bool:
        """Whether an array has arrived since the last call."""
        if self._listens and self._announced.test():
            self._listens = False
            kind, self.examples = self._numbers.tolist()
            if kind == GOODBYE:
                self.gone = True
            else:
                self._coming.start()
                self._is_coming = True
        if not self._is_coming or not self._coming.test():
            return False
        self._is_coming = False
        return True


class ParameterShard:
    """Merges the changes of workers into its weights, and answers with the weights, as the clock says.

    buckets: of the shard, neighbours, the arena's lowest first
    clock:   of the workers, this rank perhaps among them
    tag:     the first of its tags; they are the same on all ranks, since no two servers use them to one another
    outer:   merges changes; None: they are added

    ``weights``: of the shard. ``answered``: whether this rank's own worker has pulled them since its last push.
    """

    def __init__(
        self,
        transport: Transport,
        ops: Ops,
        buckets: Sequence[Bucket],
        clock: StalenessClock,
        dtype,
        tag: int,
        outer: OuterMerge | None = None,
    ):
        self._ops, self._rank, self.clock, self.outer = ops, transport.rank, clock, outer
        self.start, self.stop = buckets[0].start, buckets[-1].stop
        self.weights = transport.scratch(self.stop - self.start, dtype)
        others = [worker for worker in clock.clocks if worker != transport.rank]
        self._mailboxes = {peer: Mailbox(transport, peer, self.stop - self.start, dtype, tag) for peer in others}
        self._answers = {peer: self._prepare(transport, peer, buckets, tag + TAGS) for peer in others}
        self._sending: dict[int, list[Handle]] = {peer: [] for peer in others}
        self._changes: dict[int, Change] = {}  # worker → what has arrived and is not merged
        self.answered, self._pulled, self._is_present = True, self.weights[:0], False
        self.bytes_sent = 0

    def _prepare(self, transport: Transport, peer: int, buckets: Sequence[Bucket], tag: int) -> list[Handle]:
        """A message a bucket: the peer computes with the first while the others arrive."""
        array = self._mailboxes[peer].array
        parts = [array[bucket.start - self.start : bucket.stop - self.start] for bucket in buckets]
        return [transport.sends([(peer, part)], tag + index) for index, part in enumerate(parts)]

    def open(self, weights: Array) -> None:
        """Begin with these weights, flat over the arena, and receive changes from now on."""
        self._ops.copy(weights[self.start : self.stop], self.weights)
        self._ops.synchronize()
        self._is_present = self._rank in self.clock.clocks
        for mailbox in self._mailboxes.values():
            mailbox.listen()

    def push(self, change: Array, examples: int, pulled: Array) -> None:
        """Take a change of this rank's own worker, which leaves it alone until ``answered``. The weights go to
        ``pulled``."""
        self.answered, self._pulled = False, pulled
        self._take(self._rank, change, examples)
        self.serve()

    def goodbye(self) -> None:
        """Expect no change of this rank's own worker until the next meeting is over."""
        self._is_present = False

    def serve(self) -> None:
        """Merge and answer, without waiting."""
        for peer, mailbox in self._mailboxes.items():
            self._sending[peer] = [handle for handle in self._sending[peer] if not handle.test()]
            if not self._sending[peer] and mailbox.has_arrived():
                self._take(peer, mailbox.array, mailbox.examples)
        merged = self.clock.merge(len(self.present) + self._is_present)
        if merged:
            self._merge(merged)
        for worker in self.clock.release():
            self._answer(worker)

    def _take(self, worker: int, change: Array, examples: int) -> None:
        self._changes[worker] = change, examples
        self.clock.arrive(worker)

    def _merge(self, workers: Sequence[int]) -> None:
        changes = [self._changes.pop(worker) for worker in workers]
        if self.outer is not None:
            self.outer(self.weights, changes)
        else:
            for change, _ in changes:
                self._ops.add(self.weights, change, self.weights)
        self._ops.synchronize()
        for worker in workers:
            if worker != self._rank:
                self._mailboxes[worker].listen()

    def _answer(self, worker: int) -> None:
        is_own = worker == self._rank
        self._ops.copy(self.weights, self._pulled if is_own else self._mailboxes[worker].array)
        self._ops.synchronize()
        if is_own:
            self.answered = True
            return
        self._sending[worker] = list(self._answers[worker])
        for handle in self._sending[worker]:
            handle.start()
        self.bytes_sent += self.weights.size * self.weights.dtype.itemsize

    @property
    def present(self) -> list[int]:
        """The other workers that have not said goodbye."""
        return [peer for peer, mailbox in self._mailboxes.items() if not mailbox.gone]

    @property
    def quiet(self) -> bool:
        """Whether all other workers have said goodbye, and nothing is under way."""
        return not (self.present or self._changes or any(self._sending.values()))
