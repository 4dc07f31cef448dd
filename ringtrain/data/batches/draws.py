"""Draws by key: the n-th number of a key is a hash of both, and no stream of random numbers has a state."""

import math
from dataclasses import dataclass, field

from ringtrain.splitmix import splitmix

GRID = 1 << 20  # of a share: a coarse one is the same whichever library of mathematics computes it


@dataclass(slots=True)
class Draws:
    """The numbers of a key, one after another."""

    key: int
    drawn: int = field(default=0, init=False)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number between low and high."""
        self.drawn += 1
        return low + (high - low) * (((splitmix(self.key ^ self.drawn) >> 11) + 0.5) * 2.0**-53)

    def below(self, count: int) -> int:
        """Return a whole number from 0 to count - 1."""
        return min(count - 1, int(self.uniform() * count))

    def sides(self, pixels: int, share: tuple[float, float], ratio: tuple[float, float]) -> tuple[int, int]:
        """Return the sides of a box whose area is a share of ``pixels``, the first ``ratio`` times the second;
        both are drawn from (least, most)."""
        area, proportion = pixels * self.uniform(*share), math.exp(self.uniform(*map(math.log, ratio)))
        return round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))

    def order(self, count: int) -> list[int]:
        """Return the numbers 0 … count - 1 in an order, each as likely."""
        numbers = list(range(count))
        for last in range(count - 1, 0, -1):
            other = self.below(last + 1)
            numbers[last], numbers[other] = numbers[other], numbers[last]
        return numbers

    def beta(self, alpha: float) -> float:
        """Return a number of Beta(alpha, alpha), rounded to multiples of 2^-20: the share of one gamma variable in two,
        by their logarithms, which do not underflow."""
        first, second = self._log_gamma_variable(alpha), self._log_gamma_variable(alpha)
        apart = max(-700.0, min(700.0, second - first))
        return round(GRID / (1 + math.exp(apart))) / GRID

    def _log_gamma_variable(self, alpha: float) -> float:
        """The logarithm of a number of Gamma(alpha). Source: Marsaglia & Tsang 2000"""
        if alpha < 1:
            return self._log_gamma_variable(alpha + 1) + math.log(self.uniform()) / alpha
        d = alpha - 1 / 3
        while True:
            x = math.sqrt(-2 * math.log(self.uniform())) * math.cos(2 * math.pi * self.uniform())
            v = (1 + x / math.sqrt(9 * d)) ** 3
            if v > 0 and math.log(self.uniform()) < x * x / 2 + d - d * v + d * math.log(v):
                return math.log(d * v)
