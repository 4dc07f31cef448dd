"""Images per second: a median over iterations, or over periods of them, robust against pauses and small batches."""

from array import array
from statistics import median


class Rates:
    """Collect the durations of iterations, and return medians.

    A duration covers an iteration alone: the caller leaves out compiling, evaluating and saving.

    period: iterations of which one exchanges weights: a rate is of so many together

    Units: images over all ranks, seconds of wall-clock time, examples a second.
    """

    def __init__(self, warm_up: int = 10, window: int = 32, period: int = 1):
        self._warm_up = warm_up // period
        self._window = -(-window // period)
        self._period = period
        self._rates = array("d")
        self._images, self._seconds, self._iterations = 0, 0.0, 0  # of the period under way

    def add(self, images: int, seconds: float) -> None:
        """Add an iteration; one too short for the clock is left out."""
        if seconds > 0.0:
            self._images += images
            self._seconds += seconds
            self._iterations += 1
            if self._iterations == self._period:
                self._rates.append(self._images / self._seconds)
                self._images, self._seconds, self._iterations = 0, 0.0, 0

    def recent(self) -> float:
        """Return the median of the last iterations, for a display; 0 before the first."""
        return self._median(self._rates[-self._window :])

    def overall(self) -> float:
        """Return the median of all after the warm-up, which is at most half of a short run; 0 before the first."""
        return self._median(self._rates[min(self._warm_up, len(self._rates) // 2) :])

    def _median(self, rates) -> float:
        if rates:
            return median(rates)
        return self._images / self._seconds if self._seconds else 0.0  # of less than a period
