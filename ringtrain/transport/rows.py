"""Rows of shared memory, one a rank: each rank writes its own and reads all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Rows:
    """Memory of a board.

    rows: [size, bytes of a row], uint8; each rank writes its own alone
    near: the ranks whose rows are seen as they are written; those of others arrive within about a second
    gap:  whose rows cannot be seen here, and why; empty where all can
    """

    rows: np.ndarray
    near: Sequence[int]
    gap: str = ""
