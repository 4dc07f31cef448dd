"""The messages of gossip: two ranks send each other their weights, and take the mean."""

import time
from collections.abc import Collection

from ringtrain.exchange import tags, texts
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena
from ringtrain.transport.base import Handle
from ringtrain.transport.waiting import wait_for


class PartnerWeights:
    """Exchanges weights with one of ``partners`` at a time. ``nbytes``: of the partner's weights."""

    def __init__(self, settings: ExchangeSettings, arena: Arena, partners: Collection[int]):
        transport = settings.transport
        self._ops, self._deadline_s, self._weights = settings.ops, settings.config.deadline_s, arena.weights
        self._theirs = transport.scratch(arena.count, arena.weights.dtype)
        self.nbytes = self._theirs.size * self._theirs.dtype.itemsize
        # The receive starts before the send, so that no message arrives unexpected.
        self._handles: dict[int, tuple[Handle, ...]] = {
            peer: (
                transport.recvs([(peer, self._theirs)], tags.GOSSIP),
                transport.sends([(peer, arena.weights)], tags.GOSSIP),
            )
            for peer in partners
        }
        self._due: tuple[Handle, ...] = ()  # to start when the mark _final is done
        self._in_flight: tuple[Handle, ...] = ()
        self.bytes_sent, self.exposed_s = 0, 0.0

    def start(self, partner: int) -> None:
        """Start when the weights are final on this rank's device."""
        self._due, self._final = self._handles[partner], self._ops.mark()
        self._start_final()
        self.bytes_sent += self.nbytes

    def _start_final(self) -> bool:
        """Start the due messages if the weights are final. Returns whether none is due any more."""
        if self._due and self._final.done():
            for handle in self._due:
                handle.start()
            self._in_flight, self._due = self._due, ()
        return not self._due

    def test(self) -> None:
        """Make progress, without waiting."""
        began = time.perf_counter()
        self._start_final()
        for handle in self._in_flight:
            handle.test()
        self.exposed_s += time.perf_counter() - began

    def average(self) -> None:
        """Wait for the partner's weights, and replace this rank's by the mean of both; nothing, if none was started."""
        if not self._due and not self._in_flight:
            return
        wait_for(self._start_final, self._deadline_s, lambda: texts.AWAITED_WEIGHTS)
        began = time.perf_counter()
        for handle in self._in_flight:
            handle.wait(self._deadline_s)
        self._in_flight = ()
        self.exposed_s += time.perf_counter() - began
        self._ops.add(self._weights, self._theirs, self._weights)
        self._ops.scale(self._weights, 0.5)

    def free(self) -> None:
        """Release the messages."""
        for handles in self._handles.values():
            for handle in handles:
                handle.free()
