"""Elementary functions whose bits are the same on every CPU: by + - * / alone, which IEEE rounds alike everywhere.

The functions of NumPy and of the C library are as exact, but each CPU family has its own, with other last bits."""

import math
from collections.abc import Sequence
from decimal import Context, Decimal, DivisionByZero, InvalidOperation
from fractions import Fraction
from functools import lru_cache

import numpy as np

LOG_2 = 0.6931471805599453
ROOT_OF_HALF = np.int64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
EXPONENT = 52  # the lowest bit of float64's
QUARTER = Fraction(math.pi) / 2  # of a turn

# Taylor's, until the next term is below half of a last bit.
LOG = [2 / (2 * k + 1) for k in range(11)]  # log((1 + s)/(1 - s))/s, by s² <= 0.0295
COS = [float((-1) ** k * QUARTER ** (2 * k) / math.factorial(2 * k)) for k in range(9)]  # up to an eighth of a turn
SIN = [float((-1) ** k * QUARTER ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(9)]

DIGITS = Context(prec=24, traps=[DivisionByZero, InvalidOperation])


def log(x: np.ndarray) -> np.ndarray:
    """Return log(x) of float64, each normal and above 0."""
    bits = x.view(np.int64)
    exponent = (bits - ROOT_OF_HALF) >> EXPONENT
    m = (bits - (exponent << EXPONENT)).view(np.float64)  # from sqrt(1/2) to sqrt(2)
    s = (m - 1) / (m + 1)
    return s * _polynomial(LOG, s * s) + exponent * LOG_2


def cos_and_sin(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cos(2 pi · turns) and sin(2 pi · turns) of float64."""
    quarters = 4 * turns
    whole = np.rint(quarters)
    r = quarters - whole  # exact
    number, square = whole.astype(np.int64), r * r
    c, s = _polynomial(COS, square), r * _polynomial(SIN, square)
    odd = (number & 1).astype(bool)
    cos, sin = np.where(odd, s, c), np.where(odd, c, s)
    cos.view(np.int64)[...] ^= ((number + 1) & 2) << 62  # the sign
    sin.view(np.int64)[...] ^= (number & 2) << 62
    return cos, sin


def _polynomial(coefficients: Sequence[float], z):
    """Return the sum of coefficients[k] · z^k."""
    total = z * coefficients[-1]
    for each in coefficients[-2:0:-1]:
        total += each
        total *= z
    total += coefficients[0]
    return total


def half_cosine(t: float) -> float:
    """Return (1 + cos(pi · t))/2 of 0 <= t <= 1."""
    root = _polynomial(COS, t * t) if t <= 0.5 else (1 - t) * _polynomial(SIN, (1 - t) * (1 - t))
    return root * root


@lru_cache(64)
def power(x: float, y: float) -> float:
    """Return x**y of x >= 0, or of a whole y; infinite where it overflows."""
    if y == 0:
        return 1.0
    if x == 0 or float(y).is_integer():
        return float(DIGITS.power(Decimal(x), Decimal(y)))
    return float(DIGITS.exp(DIGITS.multiply(Decimal(y), DIGITS.ln(Decimal(x)))))
