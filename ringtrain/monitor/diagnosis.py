"""Messages from the rows of the flight recorder: the ranks that made another call, the ranks that the others wait for,
and the last collectives of every rank."""

from collections.abc import Callable, Sequence

from ringtrain.monitor.flight_recorder import RankRecord
from ringtrain.template import joined
from ringtrain.transport.waiting import peers, placed

TOLD = 8  # so many of the last collectives are listed
RANKS = 64  # so many ranks are listed


def mismatch(rows: Sequence[RankRecord], number: int) -> str | None:
    """The calls of all ranks under this number; None if they are equal. The call of most ranks is the expected one; of
    two calls of equally many ranks, that of the lowest rank."""
    calls = _calls(rows, number)
    by_frequency = sorted((text for text in calls if text), key=lambda text: (-len(calls[text]), calls[text][0]))
    if len(by_frequency) < 2:
        return None
    others = "".join(f"; got, on {_placed(rows, calls[text])}: {text}" for text in by_frequency[1:])
    if None in calls:
        others += f"; not begun on {peers(calls[None])}"
    return (
        f"collective {number} is not the same on all ranks: expected, as on {peers(calls[by_frequency[0]])}: "
        f"{by_frequency[0]}{others}. All ranks must make the same calls, of the same size and type, in the same order"
    )


def stall(rows: Sequence[RankRecord], rank: int, quiet: Callable[[int], float | None], gap: str = "") -> str:
    """The ranks that the others wait for, in which collective, and the last collectives of every rank.

    rank:  the reader of the rows
    quiet: quiet(rank) → for how many seconds it has given no sign of life; None if it gives them
    gap:   the ranks whose rows cannot be seen, and why
    """
    number = first_open(rows, quiet)
    if number is None:
        return "no collective: none is under way"
    seen = [row for row in rows if row.entries or not gap]
    lines = [_whom(seen, number, quiet, bool(gap)), *last_collectives(seen, quiet)]
    if gap:
        lines.append(f"not seen from rank {rank}: {gap}")
    return joined(lines)


def first_open(rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> int | None:
    """The number of the first collective that a rank has begun and not ended: later ones wait for it. The rows of
    silent ranks are old, and count only if there is no other."""
    heard = [row for row in rows if quiet(row.rank) is None]
    numbers = [
        [entry.number for row in some for entry in row.entries.values() if not entry.done] for some in (heard, rows)
    ]
    return min(numbers[0] or numbers[1], default=None)


def _whom(rows: Sequence[RankRecord], number: int, quiet: Callable[[int], float | None], some: bool = False) -> str:
    """``some``: some rows are missing."""
    known = {row.rank: row.entries.get(number) for row in rows}
    text = next(entry.text for entry in known.values() if entry)
    absent = [row for row in rows if row.last < number]
    silent = [(row, seconds) for row in rows if row not in absent and (seconds := quiet(row.rank)) is not None]
    waiting = [rank for rank, entry in known.items() if entry and not entry.done and quiet(rank) is None]
    named = [_not_in_it(row, rows, quiet) for row in absent]
    named += [f"{_placed(rows, [row.rank])} is in it, but {_life(seconds)}" for row, seconds in silent]
    if not named and some:
        named = ["all ranks that are seen here have joined it"]
    if not named:
        moves, last = min((entry.moved, rank) for rank, entry in known.items() if entry and not entry.done)
        named = [f"all ranks have joined it, and {_placed(rows, [last])} is the furthest behind, after {moves} moves"]
    if waiting:
        named.append(f"{peers(waiting)} waits in it" if len(waiting) == 1 else f"{peers(waiting)} wait in it")
    iteration = max(row.iteration for row in rows)
    if iteration:
        return f"collective {number}, {text}, iteration {iteration}: {'; '.join(named)}"
    return f"collective {number}, {text}: {'; '.join(named)}"


def _not_in_it(row: RankRecord, rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> str:
    verb = "joined it" if quiet(row.rank) is None else "been seen in it"
    return f"{_placed(rows, [row.rank])} has not {verb} ({_whereabouts(row, quiet)})"


def _placed(rows: Sequence[RankRecord], ranks: Sequence[int]) -> str:
    """With hosts."""
    return placed(ranks, {row.rank: row.host for row in rows})


def _whereabouts(row: RankRecord, quiet: Callable[[int], float | None]) -> str:
    last = row.entries.get(row.last)
    where: str = "it has begun none"
    if last is not None:
        where = (
            f"its last is collective {last.number}, done"
            if last.done
            else f"its last is collective {last.number}, not done"
        )
    if row.iteration:
        where += f", in iteration {row.iteration}"
    if row.left:
        return f"{where}; it has ended"
    silent_s = quiet(row.rank)
    if silent_s is not None:
        return f"when last seen: {where + _doing(row, False)}; {_life(silent_s)}"
    return where + _doing(row, True)


def _doing(row: RankRecord, alive: bool) -> str:
    return f"; it is in {row.doing}" + _time(row, alive) if row.doing else ""


def _time(row: RankRecord, alive: bool) -> str:
    return f" for {row.doing_s:.3g} s" if alive and row.doing_s >= 1 else ""


def behind(rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> list[int]:
    """The ranks that seem to delay the others: the silent ones, or else those in the earliest iteration; none if all
    are in one iteration."""
    silent = [row.rank for row in rows if quiet(row.rank) is not None and not row.left]
    earliest = min(row.iteration for row in rows)
    late = [row.rank for row in rows if row.iteration == earliest]
    return silent or (late if len(late) < len(rows) else [])


def held_up(rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> str:
    """The ranks that are behind, as the end of a sentence; empty if there are none."""
    ranks = behind(rows, quiet)
    if len(ranks) == 1:
        return f"; the furthest behind is {_placed(rows, ranks)}"
    return f"; the furthest behind are {_placed(rows, ranks)}" if ranks else ""


def rank_states(
    rows: Sequence[RankRecord], quiet: Callable[[int], float | None], gap: str = "", rank: int = 0
) -> list[str]:
    """A line for each rank with its stage, for ranks that wait outside of collectives. ``gap``: the ranks whose rows
    ``rank`` cannot see."""
    lines: list[str] = ["activity of every rank:"]
    for row in rows[:RANKS]:
        silent_s = quiet(row.rank)
        iteration = f"iteration {row.iteration}, " if row.iteration else ""
        stage = "ended" if row.left else row.doing or "between stages"
        silence = "" if silent_s is None else f"; {_life(silent_s)}"
        lines.append(f"  {_placed(rows, [row.rank])}: {iteration}{stage}{_time(row, silent_s is None)}{silence}")
    return [*lines, *([f"not seen from rank {rank}: {gap}"] if gap else [])]


def _life(seconds: float) -> str:
    return f"it has given no sign of life for {seconds:.3g} s: it is stopped, or its node hangs"


def last_collectives(rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> list[str]:
    """A line for each of the last collectives: for each call, the ranks on which it is done, those on which it is under
    way, with their moves, and those that have not begun it."""
    newest = max(row.last for row in rows)
    lines: list[str] = ["the last collectives of every rank:"]
    for number in range(max(1, newest - TOLD + 1), newest + 1):
        absent = [row.rank for row in rows if row.last < number]
        calls = _calls(rows, number)
        states = [f"{text}: {_states(rows, ranks, number)}" for text, ranks in calls.items() if text]
        lines.append(f"  {number}  {'; '.join([*states, *_absent(absent, quiet)])}")
    return lines


def _absent(ranks: list[int], quiet: Callable[[int], float | None]) -> list[str]:
    silent = [rank for rank in ranks if quiet(rank) is not None]
    known = [rank for rank in ranks if rank not in silent]
    return [f"not {verb} on {peers(these)}" for verb, these in (("begun", known), ("seen", silent)) if these]


def _states(rows: Sequence[RankRecord], ranks: list[int], number: int) -> str:
    entries = {row.rank: row.entries[number] for row in rows if row.rank in ranks}
    done = [rank for rank, entry in entries.items() if entry.done]
    inside = {rank: entry.moved for rank, entry in entries.items() if not entry.done}
    states = [f"done on {peers(done)}"] if done else []
    if inside:
        moves = ", ".join(map(str, list(inside.values())[:8]))
        under_way = f"under way on {peers(inside)} ({moves} moves)"
        states.append(under_way if any(inside.values()) else f"under way on {peers(inside)}")
    return ", ".join(states)


def _calls(rows: Sequence[RankRecord], number: int) -> dict[str | None, list[int]]:
    """The ranks of each call under this number; of None, those that have not begun it."""
    calls: dict[str | None, list[int]] = {}
    for row in rows:
        calls.setdefault(row.entries[number].text if number in row.entries else None, []).append(row.rank)
    return calls
