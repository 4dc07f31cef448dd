"""Buckets that arrive while they are needed, one after the other: waited for only as far as somebody reads."""

from collections.abc import Iterator

from ringtrain.exchange.buckets import Bucket
from ringtrain.exchange.flight import Flight


class Coming:
    """The arrivals of ``flight``, drawn on demand: of its buckets the one that is needed first is in front."""

    def __init__(self, flight: Flight):
        self._flight = flight
        self._arrivals: Iterator[Bucket] | None = None
        self._landed = len(flight.buckets)  # buckets, of the round that is under way

    def start(self) -> None:
        """A round begins; what is left of the last one lands first."""
        self.land()
        self._flight.start()
        self._arrivals, self._landed = self._flight.arrivals(), 0

    def need(self, span) -> None:
        """Return when the bucket of this span has arrived."""
        if self._arrivals is None:
            return
        self._flight.test()
        while self._landed <= self._flight.home[span.name]:
            next(self._arrivals)
            self._landed += 1

    def land(self) -> None:
        """Return when all have arrived."""
        for _ in self._arrivals or ():
            pass
        self._arrivals, self._landed = None, len(self._flight.buckets)
