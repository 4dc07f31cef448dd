"""Schedules with one thing wrong, and a second, independent judge of schedules. For tests of verify."""

import random
from collections import Counter, deque
from dataclasses import replace

from ringtrain.collectives.catalogue import make_schedule, needs_nodes
from ringtrain.collectives.execution.node_program import NodeProgram
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import Schedule, Step
from ringtrain.collectives.topology import filled
from ringtrain.errors import ScheduleError


def schedules(name: str, goal: str = "all-reduce", **how) -> list[Schedule]:
    """Those of this name on a few worlds: of nodes where it needs nodes."""
    in_nodes = goal == "all-reduce" and needs_nodes(name)
    worlds = [(2, 2), (4, 2, 3), (1, 2)] if in_nodes else [(2,), (3,), (5,), (8,)]
    return [make_schedule(name, filled(counts), goal, **how) for counts in worlds]


def with_steps(schedule: Schedule, steps) -> Schedule:
    return replace(schedule, make=lambda rank: steps[rank])


def with_tasks(program: NodeProgram, rank: int, tasks) -> NodeProgram:
    """Let a rank do this between the two waits."""
    return replace(program, tasks=(*program.tasks[:rank], tasks, *program.tasks[rank + 1 :]))


def all_steps(schedule: Schedule) -> list[list[Step]]:
    return [list(schedule.steps(rank)) for rank in range(schedule.size)]


def numbered(steps, field: str):
    """(rank, step, position, move) of every send, or of every receive."""
    return [
        (rank, k, i, move)
        for rank, rank_steps in enumerate(steps)
        for k, step in enumerate(rank_steps)
        for i, move in enumerate(getattr(step, field))
    ]


def partner(steps, sender, k, i):
    """Where the send (sender, k, i) is received: the receive with the same number between this pair."""
    peer = steps[sender][k].sends[i].peer
    before = [(j, n) for rank, j, n, m in numbered(steps, "sends") if rank == sender and m.peer == peer]
    after = [(j, n) for rank, j, n, m in numbered(steps, "recvs") if rank == peer and m.peer == sender]
    return (peer, *after[before.index((k, i))])


def edit(steps, field, rank, k, i, moves) -> None:
    """Put ``moves`` in the place of one move."""
    old = getattr(steps[rank][k], field)
    steps[rank][k] = replace(steps[rank][k], **{field: (*old[:i], *moves, *old[i + 1 :])})


def drop_send(rng, steps, schedule):
    rank, k, i, _ = rng.choice(numbered(steps, "sends"))
    edit(steps, "sends", rank, k, i, ())


def drop_both(rng, steps, schedule):
    rank, k, i, _ = rng.choice(numbered(steps, "sends"))
    peer, j, n = partner(steps, rank, k, i)
    edit(steps, "sends", rank, k, i, ())
    edit(steps, "recvs", peer, j, n, ())


def double_send(rng, steps, schedule):
    rank, k, i, move = rng.choice(numbered(steps, "sends"))
    edit(steps, "sends", rank, k, i, (move, move))


def double_both(rng, steps, schedule):
    """Sent again in a step of its own, and received again in a step of its own."""
    rank, k, i, move = rng.choice(numbered(steps, "sends"))
    peer, j, n = partner(steps, rank, k, i)
    again = steps[peer][j].recvs[n]
    steps[rank].insert(k + 1, Step(sends=(move,)))
    steps[peer].insert(j + 1, Step(recvs=(again,)))


def wrong_peer(rng, steps, schedule):
    field = rng.choice(["sends", "recvs"])
    rank, k, i, move = rng.choice(numbered(steps, field))
    others = [peer for peer in range(-1, schedule.size + 1) if peer != move.peer]
    edit(steps, field, rank, k, i, (replace(move, peer=rng.choice(others)),))


def flip_add(rng, steps, schedule):
    rank, k, i, move = rng.choice(numbered(steps, "recvs"))
    edit(steps, "recvs", rank, k, i, (replace(move, add=not move.add),))


def shift_one(rng, steps, schedule):
    field = rng.choice(["sends", "recvs"])
    rank, k, i, move = rng.choice(numbered(steps, field))
    by = rng.choice([-1, 1, schedule.chunks])
    edit(steps, field, rank, k, i, (replace(move, start=move.start + by, stop=move.stop + by),))


def shift_both(rng, steps, schedule):
    rank, k, i, _ = rng.choice(numbered(steps, "sends"))
    peer, j, n = partner(steps, rank, k, i)
    by = rng.choice([-1, 1])
    for field, where in (("sends", (rank, k, i)), ("recvs", (peer, j, n))):
        move = getattr(steps[where[0]][where[1]], field)[where[2]]
        edit(steps, field, *where, (replace(move, start=move.start + by, stop=move.stop + by),))


def widen(rng, steps, schedule):
    field = rng.choice(["sends", "recvs"])
    rank, k, i, move = rng.choice(numbered(steps, field))
    edit(steps, field, rank, k, i, (replace(move, stop=move.stop + rng.choice([-1, 1])),))


def reorder(rng, steps, schedule):
    rank = rng.choice([rank for rank, rank_steps in enumerate(steps) if len(rank_steps) > 1])
    a, b = rng.sample(range(len(steps[rank])), 2)
    steps[rank][a], steps[rank][b] = steps[rank][b], steps[rank][a]


def merge(rng, steps, schedule):
    """Two steps in one: what the second needed of the first is no longer there."""
    rank = rng.choice([rank for rank, rank_steps in enumerate(steps) if len(rank_steps) > 1])
    k = rng.randrange(len(steps[rank]) - 1)
    first, second = steps[rank][k : k + 2]
    steps[rank][k : k + 2] = [Step(first.sends + second.sends, first.recvs + second.recvs)]


KINDS = [
    drop_send, drop_both, double_send, double_both, wrong_peer, flip_add, shift_one, shift_both, widen, reorder, merge,
]  # fmt: skip
ORDER = (reorder, merge)  # steps that need nothing of one another may be exchanged, or made one: it is still right


def mutant(kind, schedule: Schedule, seed: int) -> Schedule:
    steps = all_steps(schedule)
    kind(random.Random(seed), steps, schedule)
    return with_steps(schedule, steps)


def rejections(kind, schedules, seeds, rounds=False):
    """How many mutants were rejected, and how many accepted, that differ from the original."""
    rejected = accepted = 0
    for original in schedules:
        for seed in range(seeds):
            wrong = mutant(kind, original, seed)
            if all_steps(wrong) == all_steps(original):
                continue
            try:
                verify_schedule(wrong, rounds)
            except ScheduleError:
                rejected += 1
            else:
                accepted += 1
                assert all(judge(wrong, order, rounds) for order in range(3)), f"{kind.__name__} {seed} of {original!r}"
    return rejected, accepted


def judge(schedule: Schedule, seed: int, rounds: bool = False) -> bool:
    """Whether the schedule reaches its goal in one random interleaving, computed another way than verify does: moves
    of a step one by one in random order, values as nested sets of text, an exception for anything that goes wrong.
    Text in brackets has been rounded."""
    try:
        values = _interleave(schedule, random.Random(seed), rounds)
    except (LookupError, ValueError):
        return False
    return all(_reached(schedule, values, chunk) for chunk in range(schedule.chunks))


def _reached(schedule: Schedule, values, chunk: int) -> bool:
    results = [chunks.get(chunk) for chunks in values]
    if schedule.goal == "all-gather":
        return all(value == results[0] and _leaves(value) == [str(schedule.owner(chunk))] for value in results)
    if schedule.goal == "reduce-scatter":
        results = [results[schedule.owner(chunk)]]
    once = Counter(map(str, range(schedule.size)))
    return all(value == results[0] and Counter(_leaves(value)) == once for value in results)


def _leaves(value):
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _rounded(value):
    return value if isinstance(value, list) else [value]


def _interleave(schedule, rng, rounds):
    """Final values by rank and chunk. Each rank holds the moves of its step that are still open; a move of a pair is
    done when both ends are open and are the next of their pair."""
    size = schedule.size
    steps = [deque(schedule.steps(rank)) for rank in range(size)]
    values = [{chunk: str(rank) for chunk in range(schedule.chunks)} for rank in range(size)]
    sends, recvs = [deque() for _ in range(size)], [deque() for _ in range(size)]
    while any(steps) or any(sends) or any(recvs):
        for rank in range(size):
            if not sends[rank] and not recvs[rank] and steps[rank]:
                step = steps[rank].popleft()
                sends[rank].extend(step.sends)
                recvs[rank].extend(step.recvs)
        pairs = [(a, m, n) for a in range(size) for m in _next(sends[a]) for n in _next(recvs[m.peer]) if n.peer == a]
        if not pairs:
            if any(sends) or any(recvs):
                raise ValueError("deadlock")
            continue
        source, send, recv = rng.choice(pairs)
        sends[source].remove(send)
        recvs[send.peer].remove(recv)
        itself = source == send.peer and (send.start, send.stop, False) == (recv.start, recv.stop, recv.add)
        wired = rounds and (itself or source != send.peer)
        _move(
            values[source], values[send.peer], send, recv, schedule.chunks, _rounded if wired else lambda value: value
        )
    return values


def _next(moves):
    """The first open move of each peer."""
    return list({move.peer: move for move in reversed(moves)}.values())


def _move(source, target, send, recv, chunks, wire):
    if send.stop - send.start != recv.stop - recv.start or (send.start - recv.start) % chunks:
        raise ValueError("spans differ")
    for i, j in zip(range(send.start, send.stop), range(recv.start, recv.stop), strict=True):
        target[j] = tuple(sorted((target[j], wire(source[i])), key=repr)) if recv.add else wire(source[i])
