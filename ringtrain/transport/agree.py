"""Collective calls before the first iteration, in which one clear error ends all ranks.

An action that fails on one rank alone (a file that only one node lacks) would leave the others waiting in their next
collective. Here ranks first exchange their results, and all raise the same error, or none.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ringtrain import errors
from ringtrain.errors import RankLostError, RingtrainError, UsageError, everywhere
from ringtrain.template import Lines, joined
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers

Value = TypeVar("Value")


def together(transport: Transport, action: Callable[[], Value]) -> Value:
    """Call ``action()`` on every rank; its value, or on every rank the error of the lowest rank that has one."""
    value, problem = _attempt(action)
    _raise_first(transport.gather_json(problem))
    return value


def on_root(transport: Transport, action: Callable[[], Any]) -> Any:
    """Call ``action()`` on rank 0 alone; its JSON-able value, or its error, on every rank."""
    return together_json(transport, action if transport.rank == 0 else lambda: None)[0]


def keep_on_root(transport: Transport, action: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Call ``action()`` on rank 0 alone: (its first value there, None elsewhere; its second, JSON-able, everywhere), or
    its error on every rank."""
    value = None

    def act() -> Any:
        nonlocal value
        value, facts = action()
        return facts

    facts = on_root(transport, act)
    return value, facts


def together_json(transport: Transport, action: Callable[[], Any]) -> list:
    """Call ``action()`` on every rank; the JSON-able values of all, or the error of the lowest rank that has one."""
    answers = transport.gather_json(_attempt(action))
    _raise_first([problem for _, problem in answers])
    return [value for value, _ in answers]


def _attempt(action: Callable[[], Any]) -> tuple[Any, list[str] | None]:
    """(value, None), or (None, [kind of error, message]). An error of the system (too long a name, a folder without
    permission) is the user's mistake here: the run has not begun."""
    problem: RingtrainError
    try:
        return action(), None
    except RankLostError:
        raise  # no other rank meets here any more
    except RingtrainError as error:
        problem = error
    except OSError as error:
        problem = UsageError(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError as error:  # of a network or a batch of any size that a file may name
        problem = UsageError(f"this takes more memory than there is ({error}): use a smaller network or batch")
    return None, [type(problem).__name__, str(problem)]


def agree(transport: Transport, facts: dict) -> None:
    """Raise UsageError, with ranks and values, unless every rank holds the same JSON-able facts. Collective.

    Digests travel first; the facts themselves only when a digest differs.
    """
    text = json.dumps(facts, sort_keys=True)
    digests = transport.gather_json(hashlib.sha256(text.encode()).hexdigest())
    if len(set(digests)) == 1:
        return
    everyone = transport.gather_json(facts)
    lines = ["the ranks do not agree on the run:"]
    for key in dict.fromkeys(key for rank_facts in everyone for key in rank_facts):
        values = ranks_by_value([json.dumps(rank_facts.get(key)) for rank_facts in everyone])
        if len(values) > 1:
            lines.append(f"  {key}: {holders(values)}")
    raise everywhere(UsageError(joined(lines)))


def ranks_by_value(values: Sequence[str]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def holders(ranks_by_value: dict[str, list[int]]) -> str:
    """Each value with its ranks: "a on rank 0; b on ranks 1, 2"."""
    return "; ".join(f"{value} on {peers(ranks)}" for value, ranks in ranks_by_value.items())


def _raise_first(problems: list) -> None:
    failed = [rank for rank, problem in enumerate(problems) if problem]
    if not failed:
        return
    kind, message = problems[failed[0]]
    if len(failed) < len(problems):
        message = f"{peers(failed)}: {message}"
    raise everywhere(getattr(errors, kind)(Lines(message)))


def take_turns(transport: Transport, rehearse: Callable[[], None], compiles: bool = True) -> float:
    """Call ``rehearse()``, which uses kernels. If it compiles them, one rank of a node does, and the others load them
    then. Returns seconds; raises, on every rank, the error of the lowest rank that has one. Collective."""
    started, problem = time.perf_counter(), None
    first = transport.local_rank == 0
    for turn in (first, not first) if compiles else (True,):
        if turn:
            _, problem = _attempt(rehearse)
        transport.node_barrier()
    _raise_first(transport.gather_json(problem))
    return time.perf_counter() - started
