"""Captures a run in a checkpoint, and restores it, by parameter name and for any number of ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import tomli_w
from numpy.typing import DTypeLike

from ringtrain import __version__
from ringtrain.config.resolve import to_table
from ringtrain.exchange import tags
from ringtrain.exchange.base import RankState
from ringtrain.humanize import plural
from ringtrain.memory.arena import Arena, lay_out
from ringtrain.memory.spans import Span
from ringtrain.optim.optimizers import EMA
from ringtrain.storage.checkpoint.store import Checkpoint, fingerprint
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.input_facts import inputs_of
from ringtrain.transport.base import Transport

SINCE_BEST = "since_best"  # not in checkpoints of earlier versions
SUMS = ("step", "epoch_loss", "epoch_correct", "epoch_valid")  # scalars of every checkpoint


def per(total: float, count: float) -> float:
    """The mean; NaN (null in the log) of no examples."""
    return float(total / count) if count else math.nan


@dataclass(slots=True)
class Progress:
    """The progress of a run. ``best``: the best score by ``--best-by``; ``since_best``: evaluations after it, none of
    them better; ``epoch_sums``: of loss and correct answers, over the ``valid`` labelled examples."""

    iteration: int = 0
    best: float | None = None
    since_best: int = 0
    epoch_sums: dict = field(default_factory=lambda: {"loss": 0.0, "correct": 0, "valid": 0})

    def add(self, loss_sum: float, correct: int, valid: int) -> None:
        for name, value in (("loss", loss_sum), ("correct", correct), ("valid", valid)):
            self.epoch_sums[name] += value

    def close_epoch(self) -> tuple[float, float]:
        """Start the sums anew; (mean loss, accuracy) of the epoch that ends."""
        sums, self.epoch_sums = self.epoch_sums, {"loss": 0.0, "correct": 0, "valid": 0}
        return per(sums["loss"], sums["valid"]), per(sums["correct"], sums["valid"])


def parameter_shapes(arena: Arena) -> dict[str, tuple[int, ...]]:
    return {span.name: span.shape for span in arena.spans}


def by_name(arena: Arena, flat: np.ndarray) -> dict[str, np.ndarray]:
    """A flat host array over the arena, cut into one array a parameter."""
    return {span.name: flat[span.start : span.start + span.count].reshape(span.shape) for span in arena.spans}


def flat_of(spans: Sequence[Span], named: Mapping[str, np.ndarray], dtype: DTypeLike) -> np.ndarray:
    """The reverse of :func:`by_name`; padding is zero."""
    flat = np.zeros(spans[-1].stop if spans else 0, dtype)
    for span in spans:
        flat[span.start : span.start + span.count] = named[span.name].reshape(-1)
    return flat


def from_root(
    transport: Transport, spans: Sequence[Span], named: Mapping[str, np.ndarray] | None, dtype: DTypeLike
) -> np.ndarray:
    """Broadcast rank 0's arrays by name, as a flat host array of these spans; the other ranks give None. Collective."""
    flat = np.empty(spans[-1].stop if spans else 0, dtype) if named is None else flat_of(spans, named, dtype)
    transport.broadcast(flat)
    return flat


@contextmanager
def averaged_weights(run: Assembly) -> Iterator[None]:
    """With ``--ema``: the ranks that hold the whole network have the average in place of the weights meanwhile.
    Collective, after :meth:`Exchange.synchronize`."""
    if run.config.optimizer.ema is None:
        yield
        return
    ops, weights, transport = run.ops, run.arena.weights, run.transport
    state = run.exchange.owned_state.state()  # whole on rank 0
    has_average = transport.gather_json(state["step"] > 0)[0]  # none before the first update
    whole = transport.rank in run.roles.whole(transport.size)
    if not has_average:
        yield
        return
    flat = state[EMA] if transport.rank == 0 else np.empty(lay_out(run.graph.parameters())[-1].stop, ops.dtype)
    transport.broadcast(flat)
    if not whole:
        yield
        return
    kept = ops.empty(weights.shape, weights.dtype)
    ops.copy(weights, kept)
    ops.upload(flat, weights)
    try:
        yield
    finally:
        ops.copy(kept, weights)
        ops.synchronize()


def capture(run: Assembly, progress: Progress) -> Checkpoint | None:
    """The state between two iterations, on rank 0. Collective: a strategy may gather parts of it."""
    run.exchange.synchronize()
    state, ranks = run.exchange.owned_state.state(), _gathered(run)
    return replace(checkpoint_of(run, progress, state), ranks=ranks) if run.transport.rank == 0 else None


def checkpoint_of(run: Assembly, progress: Progress, whole: dict | None = None) -> Checkpoint:
    """The checkpoint of a run. ``whole``: the exchange's whole state, unless a rank has it alone. Not collective."""
    ops, state = run.ops, run.exchange.owned_state.state() if whole is None else whole
    slots = {name: by_name(run.arena, flat) for name, flat in state.items() if name != "step"}
    return Checkpoint(
        iteration=progress.iteration,
        examples_seen=run.sampler.examples_seen(progress.iteration),
        epoch=run.sampler.epoch_of(progress.iteration),
        weights=by_name(run.arena, ops.to_host(run.arena.weights)),
        optimizer=slots,
        scalars={
            "step": state["step"],
            SINCE_BEST: progress.since_best,
            **{f"epoch_{key}": value for key, value in progress.epoch_sums.items()},
            **(run.scale.state() if run.scale is not None else {}),
        },
        config=tomli_w.dumps(to_table(run.config) | {"shuffle": run.sampler.shuffled}),
        model=run.model.text,
        model_name=run.model.name,
        fingerprint=fingerprint(parameter_shapes(run.arena)),
        data_name=run.data.name,
        data_checksum=run.data.checksum,
        best=progress.best,
        version=__version__,
        numerics=ops.numerics(),
        classes=run.data.classes,
        inputs=inputs_of(run.model.input, run.data),
    )


def common_facts(checkpoint: Checkpoint) -> dict:
    """The facts of a checkpoint for every rank: JSON-able."""
    names = ("iteration", "examples_seen", "best", "config", "model", "model_name", "data_name", "data_checksum")
    return {name: getattr(checkpoint, name) for name in (*names, "numerics")} | {
        "scalars": dict(checkpoint.scalars),
        "slots": sorted(checkpoint.optimizer),
        "ranks": {name: [array.dtype.str, *array.shape] for name, array in checkpoint.ranks.items()},
    }


def restore(run: Assembly, facts: dict, checkpoint: Checkpoint | None) -> Progress:
    """Restore rank 0's checkpoint on every rank; ``facts``: its :func:`common_facts`, on all. Collective."""
    ops, whole = run.ops, lay_out(run.graph.parameters())

    def spread(named: Mapping[str, np.ndarray] | None) -> np.ndarray:
        return from_root(run.transport, whole, named, ops.dtype)

    weights = spread(checkpoint.weights if checkpoint else None)
    ops.upload(run.exchange.own_part(weights), run.arena.weights)
    slots = {name: spread(checkpoint.optimizer[name] if checkpoint else None) for name in facts["slots"]}
    run.exchange.owned_state.restore({"step": int(facts["scalars"]["step"]), **slots})
    _restore_ranks(run, facts["ranks"], checkpoint)
    if run.scale is not None:
        run.scale.restore(facts["scalars"])
    sums = {key: facts["scalars"][f"epoch_{key}"] for key in ("loss", "correct", "valid")}
    return Progress(
        iteration=run.sampler.iteration_at(facts["examples_seen"]),
        best=facts["best"],
        since_best=int(facts["scalars"].get(SINCE_BEST, 0)) if facts["best"] is not None else 0,
        epoch_sums=sums,
    )


# ── state in which ranks differ (:class:`RankState`): arrays with one row a rank ─────────────────────────────
# ``form``: name → [type, ranks, elements of each]
def _gathered(run: Assembly) -> dict[str, np.ndarray]:
    """The arrays of all ranks, on rank 0. Collective."""
    transport, state, rows = run.transport, run.exchange.owned_state.rank_state, {}
    for name, array in state.arrays().items() if state is not None and state.differs else ():
        rows[name] = np.empty((1 if transport.rank else transport.size, *array.shape), array.dtype)
        rows[name][0] = array if isinstance(array, np.ndarray) else run.ops.to_host(array)
        _move(run, rows[name], to_root=True)
    return rows


def _restore_ranks(run: Assembly, form: dict[str, list], checkpoint: Checkpoint | None) -> None:
    """Give each rank its rows of rank 0's checkpoint, if they are of these ranks. Collective."""
    state, taken = _fitting(run, form) if form else None, {}
    if state is None:
        return
    for name, (dtype, _, count) in form.items():
        rows = np.empty((1, count), dtype) if checkpoint is None else checkpoint.ranks[name]
        _move(run, rows, to_root=False)
        taken[name] = rows[0]
    state.take(taken)


def _fitting(run: Assembly, form: dict[str, list]) -> RankState | None:
    """The state that these arrays are of, by as many ranks; else None."""
    state = run.exchange.owned_state.rank_state
    arrays = {} if state is None else state.arrays()
    fits = form == {name: [array.dtype.str, run.transport.size, *array.shape] for name, array in arrays.items()}
    return state if fits else None


def _move(run: Assembly, rows: np.ndarray, to_root: bool) -> None:
    """Move the row of each other rank, which is the first there, to rank 0 or from it."""
    transport, root = run.transport, run.transport.rank == 0
    moves = [(rank, rows[rank]) for rank in range(1, transport.size)] if root else [(0, rows[0])]
    handle = (transport.recvs if root == to_root else transport.sends)(moves, tags.RANK_STATE)
    handle.start()
    handle.wait(run.config.exchange.deadline_s)
    handle.free()


def rank_notes(run: Assembly, form: dict[str, list]) -> list[str]:
    """Say where ranks begin, if it is not where each rank of the checkpoint was."""
    if not form or _fitting(run, form):
        return []
    before, now = (plural(ranks, "rank") for ranks in (next(iter(form.values()))[1], run.transport.size))
    return [
        (
            f"the checkpoint has {', '.join(form)} of each of its {before}, for as many of the same strategy and "
            f"optimizer; here {now} begin alike, from the mean (of residuals from the sum)"
        )
    ]
