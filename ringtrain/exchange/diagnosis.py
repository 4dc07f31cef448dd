"""What the rows of a board say when something is wrong: who made another call, whom the others wait for, and the last
collectives of every rank. Texts for people, from rows alone."""

from collections.abc import Callable, Sequence

from ringtrain.transport.board import Entry, Row
from ringtrain.transport.waiting import peers, placed

TOLD = 8  # the last collectives that are written
RANKS = 64  # whose whereabouts are written


def mismatch(rows: Sequence[Row], number: int) -> str | None:
    """Who calls what under this number, where they do not all call the same: what most ranks call (the lowest ones,
    where as many call something else) is what was expected."""
    calls = _grouped(rows, lambda row: row.entries[number].text if number in row.entries else None)
    texts = sorted((text for text in calls if text), key=lambda text: (-len(calls[text]), calls[text][0]))
    if len(texts) < 2:
        return None
    got = "".join(f"; got, on {_placed(rows, calls[text])}: {text}" for text in texts[1:])
    absent = f"; not begun on {peers(calls[None])}" if None in calls else ""
    return (
        f"collective {number} is not the same on all ranks: expected, as on {peers(calls[texts[0]])}: {texts[0]}{got}"
        f"{absent}. All ranks must make the same calls, of the same size and type, in the same order"
    )


def stall(rows: Sequence[Row], rank: int, quiet: Callable[[int], float | None], gap: str = "") -> str:
    """Whom the others wait for, in which collective, and the last collectives of every rank.

    rank:  whose view it is
    quiet: for a rank, for how many seconds it has given no sign of life; None where it gives them
    gap:   whose rows cannot be seen
    """
    number = first_open(rows, quiet)
    if number is None:
        return "no collective: none is under way"
    seen = [row for row in rows if row.entries or not gap]
    lines = [_whom(seen, number, quiet, bool(gap)), *last_collectives(seen, quiet)]
    if gap:
        lines.append(f"not seen from rank {rank}: {gap}")
    return "\n".join(lines)


def first_open(rows: Sequence[Row], quiet: Callable[[int], float | None]) -> int | None:
    """Number of the first collective that some rank has begun and not ended: the one that the later ones wait for. What
    a silent rank has written is old, and counts where there is nothing else."""
    heard = [row for row in rows if quiet(row.rank) is None]
    numbers = [
        [entry.number for row in some for entry in row.entries.values() if not entry.done] for some in (heard, rows)
    ]
    return min(numbers[0] or numbers[1], default=None)


def _whom(rows: Sequence[Row], number: int, quiet: Callable[[int], float | None], some: bool = False) -> str:
    """``some``: not all rows are there."""
    known = {row.rank: row.entries.get(number) for row in rows}
    text = next(entry.text for entry in known.values() if entry)
    absent = [row for row in rows if row.last < number]
    silent = [row for row in rows if row not in absent and quiet(row.rank) is not None]
    waiting = [rank for rank, entry in known.items() if entry and not entry.done and quiet(rank) is None]
    named = [
        f"{_placed(rows, [row.rank])} has not {_joined(quiet(row.rank))} it ({_whereabouts(row, quiet)})"
        for row in absent
    ]
    named += [f"{_placed(rows, [row.rank])} is in it, but {_life(quiet(row.rank))}" for row in silent]
    if not named and some:
        named = ["all ranks that are seen here have joined it"]
    if not named:
        moved = [entry and not entry.done and (entry.moved, rank) for rank, entry in known.items()]
        named = [_least_moved(rows, moved)]
    if waiting:
        named.append(f"{peers(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in it")
    return f"collective {number}, {text}{_when(rows)}: {'; '.join(named)}"


def _joined(silent_s: float | None) -> str:
    return "joined" if silent_s is None else "been seen in"


def _placed(rows: Sequence[Row], ranks: Sequence[int]) -> str:
    """With hosts."""
    return placed(ranks, {row.rank: row.host for row in rows})


def _least_moved(rows: Sequence[Row], moved: list) -> str:
    steps, rank = min(filter(None, moved))
    return f"all ranks have joined it, and it has got least far, {steps} moves, on {_placed(rows, [rank])}"


def _whereabouts(row: Row, quiet: Callable[[int], float | None]) -> str:
    last = row.entries.get(row.last)
    where = "it has begun none" if last is None else f"its last is collective {last.number}, {_state(last)}"
    iteration = f", in iteration {row.iteration}" if row.iteration else ""
    if row.left:
        return f"{where}{iteration}; it has ended"
    if quiet(row.rank) is not None:
        return f"when last seen: {where}{iteration}{_doing(row, False)}; {_life(quiet(row.rank))}"
    return f"{where}{iteration}{_doing(row, True)}"


def _doing(row: Row, alive: bool) -> str:
    time = f" for {row.doing_s:.3g} s" if alive and row.doing_s >= 1 else ""
    return f"; it is in {row.doing}{time}" if row.doing else ""


def behind(rows: Sequence[Row], quiet: Callable[[int], float | None]) -> list[int]:
    """The ranks that seem to hold the others up: those that give no sign of life, or else those that are in the
    earliest iteration; none where all are in the same."""
    silent = [row.rank for row in rows if quiet(row.rank) is not None and not row.left]
    earliest = min(row.iteration for row in rows)
    late = [row.rank for row in rows if row.iteration == earliest]
    return silent or (late if len(late) < len(rows) else [])


def held_up(rows: Sequence[Row], quiet: Callable[[int], float | None]) -> str:
    """By whom, as the end of a sentence; empty where nobody is behind."""
    ranks = behind(rows, quiet)
    return f"; the furthest behind {'is' if len(ranks) == 1 else 'are'} {_placed(rows, ranks)}" if ranks else ""


def whereabouts(rows: Sequence[Row], quiet: Callable[[int], float | None], gap: str = "", rank: int = 0) -> list[str]:
    """A line for each rank: what it does, for ranks that wait outside of collectives. ``gap``: whose rows ``rank``
    cannot see."""
    lines = ["what every rank does:"]
    for row in rows[:RANKS]:
        told = "ended" if row.left else row.doing or "between stages"
        iteration = f"iteration {row.iteration}, " if row.iteration else ""
        time = f" for {row.doing_s:.3g} s" if row.doing_s >= 1 and quiet(row.rank) is None else ""
        silent = f"; {_life(quiet(row.rank))}" if quiet(row.rank) is not None else ""
        lines.append(f"  {_placed(rows, [row.rank])}: {iteration}{told}{time}{silent}")
    return [*lines, *([f"not seen from rank {rank}: {gap}"] if gap else [])]


def _state(entry: Entry) -> str:
    return "done" if entry.done else "in which it is"


def _life(seconds: float) -> str:
    return f"it has given no sign of life for {seconds:.3g} s: stopped, or its node hangs"


def _when(rows: Sequence[Row]) -> str:
    iteration = max(row.iteration for row in rows)
    return f", iteration {iteration}" if iteration else ""


def last_collectives(rows: Sequence[Row], quiet: Callable[[int], float | None]) -> list[str]:
    """A line for each of the last collectives and each call that is made in it: on which ranks it is done, on which it
    is under way, with its moves, and which have not begun it."""
    newest = max(row.last for row in rows)
    lines = ["the last collectives of every rank:"]
    for number in range(max(1, newest - TOLD + 1), newest + 1):
        absent = [row.rank for row in rows if row.last < number]
        calls = _grouped(rows, lambda row, number=number: row.entries[number].text if number in row.entries else None)
        states = [f"{text}: {_states(rows, ranks, number)}" for text, ranks in calls.items() if text]
        lines.append(f"  {number}  {'; '.join([*states, *_absent(absent, quiet)])}")
    return lines


def _absent(ranks: list[int], quiet: Callable[[int], float | None]) -> list[str]:
    silent = [rank for rank in ranks if quiet(rank) is not None]
    known = [rank for rank in ranks if rank not in silent]
    return [f"{word} on {peers(these)}" for word, these in (("not begun", known), ("not seen", silent)) if these]


def _states(rows: Sequence[Row], ranks: list[int], number: int) -> str:
    entries = {row.rank: row.entries[number] for row in rows if row.rank in ranks}
    done = [rank for rank, entry in entries.items() if entry.done]
    inside = {rank: entry.moved for rank, entry in entries.items() if not entry.done}
    states = [f"done on {peers(done)}"] if done else []
    if inside:
        moves = f" ({', '.join(map(str, list(inside.values())[:8]))} moves)" if any(inside.values()) else ""
        states.append(f"under way on {peers(inside)}{moves}")
    return ", ".join(states)


def _grouped(rows: Sequence[Row], key: Callable[[Row], str | None]) -> dict:
    """Ranks by key."""
    groups: dict = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row.rank)
    return groups
