"""The graphs of gossip: whose weights a rank takes in each turn, and by how much; known to all ranks.

*pairs*: :mod:`ringtrain.exchange.strategies.gossip_pairs`. *ring*: both neighbours and itself, a third each.
*exponential*: itself and the rank 2^t before it, a half each, in ceil(log2 p) turns. *A file*: p x p matrices that take
turns; entry [i, j] is how much rank i takes of rank j. Each column sums to 1, so that weights are passed on and none is
lost; a rank keeps a part of its own, and over all turns each rank reaches every other.

Where a row of a file's matrix sums to another number than 1, a rank also has a *push weight*, 1 at first, which is
passed on as the weights are: a rank takes the share P[i, j]·push[j] / push'[i] of rank j, with push' = P·push.

Source: Assran, Loizou, Ballas & Rabbat, Stochastic Gradient Push for distributed deep learning, ICML 2019 (exponential
graph, push weights); Kempe, Dobra & Gehrke, Gossip-based computation of aggregate information, FOCS 2003 (push-sum).
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ringtrain.arrays import Array
from ringtrain.errors import UsageError
from ringtrain.exchange.base import RankState
from ringtrain.exchange.strategies.gossip_pairs import partners
from ringtrain.transport.agree import on_root
from ringtrain.transport.base import Transport

PAIRS, RING, EXPONENTIAL = NAMES = "pairs", "ring", "exponential"


class Turn(NamedTuple):
    """``takes``: the ranks whose weights this rank takes, itself among them, in their order, and the share of each;
    ``gives``: the other ranks that take its weights."""

    takes: dict[int, float]
    gives: tuple[int, ...]


def make_turns(name: str, transport: Transport, seed: int) -> tuple[list[Turn], np.ndarray | None]:
    """Return (the turns of this rank, again and again; their matrices, if push weights differ) of the graph of this
    name, or of a file on rank 0. Collective; raises UsageError."""
    rank, size = transport.rank, transport.size
    if name == PAIRS:
        met = [() if each is None else (each,) for each in partners(rank, seed, size)]
        return [_equal_turn(rank, each, each) for each in met], None
    if name == RING:
        both = (rank - 1) % size, (rank + 1) % size
        return [_equal_turn(rank, both, both)], None
    if name == EXPONENTIAL:
        steps = [1 << turn for turn in range(max(1, (size - 1).bit_length()))]
        return [_equal_turn(rank, [(rank - step) % size], [(rank + step) % size]) for step in steps], None
    matrices = np.array(on_root(transport, lambda: read_matrices(name, size).tolist()))
    turns = [Turn(_shares(matrix[rank]), tuple(_shares(matrix[:, rank]).keys() - {rank})) for matrix in matrices]
    return turns, None if np.allclose(matrices.sum(2), 1, rtol=0, atol=1e-9) else matrices


def _equal_turn(rank: int, sources: Iterable[int], targets: Iterable[int]) -> Turn:
    takes = sorted({rank, *sources})
    return Turn(dict.fromkeys(takes, 1 / len(takes)), tuple({*targets} - {rank}))


def _shares(row: np.ndarray) -> dict[int, float]:
    return {rank: share for rank, share in enumerate(row.tolist()) if share}


def read_matrices(path: str, size: int) -> np.ndarray:
    """Return [turns, size, size] from a file that NumPy saved (.npy), or from text. Raises UsageError."""
    option = f"--gossip-graph {path}"
    try:
        array = np.load(path, allow_pickle=False) if path.endswith(".npy") else np.loadtxt(path, ndmin=2)
        rows = np.asarray(array, np.float64)
        rows = rows.reshape(-1, rows.shape[-1])
    except (OSError, ValueError, TypeError, IndexError) as error:
        raise UsageError(
            f"{option} is none of {', '.join(NAMES)}, and no file of a matrix: {str(error).rstrip('.')}. "
            "Give one of these, or the path of a matrix"
        ) from error
    if rows.shape[1] != size or len(rows) % size or not len(rows):
        raise UsageError(
            f"{option} has {len(rows)} rows of {rows.shape[1]} numbers, and {size} ranks need {size} rows of {size} "
            "for each turn, one turn below the other"
        )
    matrices = rows.reshape(-1, size, size)
    for turn, matrix in enumerate(matrices, 1):
        _check(option + (f", turn {turn} of {len(matrices)}" if len(matrices) > 1 else ""), matrix)
    reached = matrices.sum(0) > 0  # [target, source], in one step or none; then in twice as many
    for _ in range(size.bit_length()):
        reached = reached @ reached
    for target, source in np.argwhere(~reached)[:1]:
        raise UsageError(f"{option}: rank {source}'s weights never reach rank {target}, and over all turns all must")
    return matrices / matrices.sum(1, keepdims=True)


def _check(option: str, matrix: np.ndarray) -> None:
    """Raise UsageError, with row and column as ranks, from 0, unless each rank's weights are divided whole."""
    for is_wrong, why in (
        (~((matrix >= 0) & (matrix <= 1)), "a share is from 0 to 1"),
        (np.diag(matrix.diagonal() == 0), "a rank keeps a part of its own weights"),
    ):
        for row, column in np.argwhere(is_wrong)[:1]:
            raise UsageError(f"{option}: row {row}, column {column} is {matrix[row, column]:g}: {why}")
    sums = matrix.sum(0)
    for column in np.flatnonzero(np.abs(sums - 1) > 1e-5)[:1]:
        raise UsageError(
            f"{option}: column {column}, how that rank's weights are divided, sums to {sums[column]:g}, not 1"
        )


class PushWeights(RankState):
    """The push ``weights`` of all ranks, which each rank computes by itself from the matrices. Their sum stays the
    number of ranks, and the mean over the ranks is by them."""

    differs = True

    def __init__(self, matrices: np.ndarray):
        self._matrices, self.weights = matrices, np.ones(matrices.shape[1])

    def push(self, turn: int, rank: int) -> dict[int, float]:
        """Pass the push weights on. Returns the shares that this rank takes of the ranks' weights."""
        matrix, before = self._matrices[turn], self.weights
        self.weights = matrix @ before
        return _shares(matrix[rank] * before / self.weights[rank])

    def arrays(self) -> dict[str, Array]:
        return {"push_weights": self.weights}

    def take(self, arrays: dict[str, np.ndarray]) -> None:
        self.weights = arrays["push_weights"]
