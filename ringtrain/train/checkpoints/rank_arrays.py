"""State in which the ranks of a run differ (:class:`RankState`): in a checkpoint, arrays with one row a rank. ``form``:
name → [type, ranks, elements of each]."""

import numpy as np

from ringtrain.exchange import tags
from ringtrain.exchange.base import RankState
from ringtrain.humanize import plural
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.transport.base import Transport


def gathered(run: Assembly, transport: Transport) -> dict[str, np.ndarray]:
    """The arrays of all ranks, on rank 0. Collective."""
    state, rows = run.exchange.owned_state.rank_state, {}
    for name, array in state.arrays().items() if state is not None and state.differs else ():
        rows[name] = np.empty((1 if transport.rank else transport.size, *array.shape), array.dtype)
        rows[name][0] = array if isinstance(array, np.ndarray) else run.ops.to_host(array)
        _move(run, transport, rows[name], to_root=True)
    return rows


def restore(run: Assembly, transport: Transport, form: dict[str, list], checkpoint: Checkpoint | None) -> None:
    """Give each rank its rows of rank 0's checkpoint, if they are of these ranks. Collective."""
    state, taken = _fitting(run, transport, form) if form else None, {}
    if state is None:
        return
    for name, (dtype, _, count) in form.items():
        rows = np.empty((1, count), dtype) if checkpoint is None else checkpoint.ranks[name]
        _move(run, transport, rows, to_root=False)
        taken[name] = rows[0]
    state.take(taken)


def _fitting(run: Assembly, transport: Transport, form: dict[str, list]) -> RankState | None:
    """The state that these arrays are of, by as many ranks; else None."""
    state = run.exchange.owned_state.rank_state
    arrays = {} if state is None else state.arrays()
    fits = form == {name: [array.dtype.str, transport.size, *array.shape] for name, array in arrays.items()}
    return state if fits else None


def _move(run: Assembly, transport: Transport, rows: np.ndarray, to_root: bool) -> None:
    """Move the row of each other rank, which is the first there, to rank 0 or from it."""
    root = transport.rank == 0
    moves = [(rank, rows[rank]) for rank in range(1, transport.size)] if root else [(0, rows[0])]
    handle = (transport.recvs if root == to_root else transport.sends)(moves, tags.RANK_STATE)
    handle.start()
    handle.wait(run.config.exchange.deadline_s)
    handle.free()


def notes(run: Assembly, transport: Transport, form: dict[str, list]) -> list[str]:
    """Say where ranks begin, if it is not where each rank of the checkpoint was."""
    if not form or _fitting(run, transport, form):
        return []
    before, now = (plural(ranks, "rank") for ranks in (next(iter(form.values()))[1], transport.size))
    return [
        (
            f"the checkpoint has {', '.join(form)} of each of its {before}, for as many of the same strategy and "
            f"optimizer; here {now} begin alike, from the mean (of residuals from the sum)"
        )
    ]
