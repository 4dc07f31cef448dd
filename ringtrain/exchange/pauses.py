"""A process that was itself stopped, told from one whose looks come late because it hardly runs."""

PAUSED_S = 2.0  # so much later than it should, a look comes after a pause


class Pauses:
    """A job may be suspended and go on: in that time nobody gets on, and nobody is to blame. A look that comes late
    after one in time comes after a pause. One that comes late after another late one does not: where every look is
    late, on an overloaded node, time counts, or a stall there would never be told.

    at: when the first look was
    """

    def __init__(self, every_s: float, at: float):
        self._limit_s, self._at, self._late = every_s + PAUSED_S, at, False

    def before(self, now: float) -> float:
        """Seconds before this look that do not count; 0 unless it comes after a pause."""
        passed_s, after_late = now - self._at, self._late
        self._at, self._late = now, passed_s > self._limit_s
        return passed_s if self._late and not after_late else 0.0
