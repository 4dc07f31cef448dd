"""The state of a strategy for a script's own checkpoint: the sum under way, outer momentum, error feedback, the place
in the period; and the optimizer's state, of which owners have parts, and ranks that differ have one each.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from ringtrain.errors import CheckpointError
from ringtrain.exchange.update.owned_update import STEP
from ringtrain.memory.arena import Arena
from ringtrain.torch.engine import Engine
from ringtrain.torch.module_arena import ModuleArena


def state_of(engine: Engine) -> dict:
    """Return the state on rank 0, of tensors and numbers; elsewhere nothing. Collective, between two steps."""
    engine.synchronize()
    engine.saved = True
    arenas = [_state_of_type(arena, engine.group) for arena in engine.arenas]
    if engine.transport.rank:
        return {}
    return {"strategy": engine.arenas[0].exchange.facts.name, "iteration": engine.iteration, "arenas": arenas}


def _state_of_type(part: ModuleArena, group: dist.ProcessGroup) -> dict:
    state, optimizer = part.exchange.owned_state, part.rule.state
    part.rule.agree_on_slots(part.transport.gather_json)
    whole, kept = state.state(), state.rank_state
    rows = kept.arrays() if kept is not None and kept.differs else {}
    row = {"arrays": {name: _tensor(array) for name, array in rows.items()}, "rest": optimizer.rest()}
    every: list = [None] * part.transport.size
    dist.gather_object(row, None if part.transport.rank else every, group=group, group_dst=0)
    whole = {name: value if name == STEP else _tensor(value) for name, value in whole.items()}
    order = [span.name for span in part.arena.spans]
    return {"order": order, "slots": list(optimizer), "whole": whole, "ranks": every}


def _tensor(array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def restore(engine: Engine, state: Mapping) -> None:
    """Take a state of :func:`state_of`, of any number of ranks: what each rank has of its own, as many ranks get back;
    others begin alike, from its mean or sum. Raises CheckpointError for the state of another strategy or module."""
    strategy, arenas = engine.arenas[0].exchange.facts.name, state.get("arenas", ())
    if state.get("strategy") != strategy or len(arenas) != len(engine.arenas):
        raise CheckpointError(
            f"ringtrain.torch.load_state_dict() got the state of strategy {state.get('strategy')!r}, and this run's is "
            f"{strategy!r}: give the same options, and the state that state_dict() returned on rank 0"
        )
    engine.iteration = state["iteration"]
    for arena, each in zip(engine.arenas, arenas, strict=True):
        _restore_type(arena, each)


def _restore_type(part: ModuleArena, saved: Mapping) -> None:
    rank, ranks = part.transport.rank, saved["ranks"]
    alike = len(ranks) == part.transport.size
    rest = {name: values for row in reversed(ranks) for name, values in row["rest"].items()}
    part.rule.state.prepare(saved["slots"], rest | (ranks[rank]["rest"] if alike else {}))
    whole = {
        name: value if name == STEP else _in_order(value.numpy(), saved["order"], part.arena)
        for name, value in saved["whole"].items()
    }
    part.exchange.owned_state.restore(whole)
    kept = part.exchange.owned_state.rank_state
    arrays = {name: value.numpy() for name, value in ranks[rank]["arrays"].items()} if alike else {}
    if kept is not None and arrays and _shapes(arrays) == _shapes(kept.arrays()):  # of as many fragments
        kept.take(arrays)


def _shapes(arrays: Mapping) -> dict[str, tuple]:
    return {name: array.shape for name, array in arrays.items()}


def _in_order(array: np.ndarray, names: Sequence[str], arena: Arena) -> np.ndarray:
    """Return an array over spans of these names as one over the arena: other owners have others as neighbours."""
    spans, at, ordered = {span.name: span for span in arena.spans}, 0, np.array(array)
    for span in (spans[name] for name in names if array.size == arena.count):
        ordered[span.start : span.stop] = array[at : at + span.stop - span.start]
        at += span.stop - span.start
    return ordered
