"""Rows of shared memory, one for each rank: a rank writes its own row and reads all rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rows:
    """The memory of the flight recorder.

    rows: [size, bytes of a row], uint8; each rank writes only its own
    near: the ranks whose stores are seen at once; rows of other nodes arrive within about a second
    gap:  the ranks whose rows cannot be seen here, and why; empty if all can
    """

    rows: np.ndarray
    near: Sequence[int]
    gap: str = ""
