"""A server's side where ranks are apart: weights to which updates are added as they come, and which ranks take.

Weights are either being sent or being changed, never both: what arrives while some are under way waits for those.
"""

from collections.abc import Sequence

from ringtrain.exchange.servers.mailbox import TAGS, Mailbox
from ringtrain.exchange.servers.staleness import StalenessClock
from ringtrain.nn.buckets import Bucket
from ringtrain.transport.base import Handle, Transport


class ParameterShard:
    """buckets:   what it owns, neighbours, the arena's lowest first
    workers:   ranks that give updates and take weights, this one perhaps among them
    staleness: how many updates one may be ahead of the slowest; None: as many as it likes
    tag:       the first of its tags; they are the same on all ranks, since no two servers send to one another's

    ``weights``: of its part of the arena. ``free``: whether this rank's own worker has been given them.
    """

    def __init__(
        self,
        transport: Transport,
        ops,
        buckets: Sequence[Bucket],
        workers: Sequence[int],
        staleness: int | None,
        dtype,
        tag: int,
    ):
        self._ops, self._rank = ops, transport.rank
        self.start, self.stop = buckets[0].start, buckets[-1].stop
        self.clock = StalenessClock(workers, staleness)
        self.weights = transport.scratch(self.stop - self.start, dtype)
        others = [worker for worker in workers if worker != transport.rank]
        self._mail = Mailbox(transport, others, self.stop - self.start, dtype, tag)
        self._replies = {peer: self._reply(transport, peer, buckets, tag + TAGS) for peer in others}
        self._leaving: list[Handle] = []
        self._arrived: list[tuple[int, object]] = []
        self.free, self._own = True, None
        self.bytes_sent = 0

    def _reply(self, transport: Transport, peer: int, buckets: Sequence[Bucket], tag: int) -> list[Handle]:
        """A message a bucket, so that the peer can compute with the first while the others arrive."""
        parts = [self.weights[bucket.start - self.start : bucket.stop - self.start] for bucket in buckets]
        return [transport.sends([(peer, part)], tag + place) for place, part in enumerate(parts)]

    def open(self, weights) -> None:
        """A time between two meetings begins, with these weights, the arena's."""
        self._ops.copy(weights[self.start : self.stop], self.weights)
        self._ops.synchronize()
        self._mail.open()

    def give(self, update, base) -> None:
        """An update of this rank's own worker, which does not change until it is ``free``: then ``base`` holds the
        weights of the moment at which it may go on."""
        self.free, self._own = False, base
        self._arrived.append((self._rank, update))
        self.serve()

    def serve(self) -> None:
        """Do what can be done without waiting."""
        self._leaving = [handle for handle in self._leaving if not handle.test()]
        self._arrived += self._mail.arrivals()
        if self._arrived and not self._leaving:
            self._add()
            self._let_go()

    def _add(self) -> None:
        for _, update in self._arrived:
            self._ops.add(self.weights, update, self.weights)
        self._ops.synchronize()
        for worker, _ in self._arrived:
            self.clock.arrive(worker)
            if worker != self._rank:
                self._mail.listen(worker)
        self._arrived = []

    def _let_go(self) -> None:
        for worker in self.clock.release():
            if worker == self._rank:
                self._ops.copy(self.weights, self._own)
                self._ops.synchronize()
                self.free = True
            else:
                self._send(worker)

    def _send(self, worker: int) -> None:
        for handle in self._replies[worker]:
            handle.start()
            self._leaving.append(handle)
        self.bytes_sent += self.weights.size * self.weights.dtype.itemsize

    @property
    def present(self) -> list[int]:
        """The others that are not yet at the meeting."""
        return self._mail.present

    @property
    def quiet(self) -> bool:
        """Whether all others are at the meeting, and nothing is under way."""
        return not (self.present or self._arrived or self._leaving)
