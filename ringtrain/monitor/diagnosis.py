"""Messages from the rows of the flight recorder: the ranks that made another call, the ranks that the others wait for,
and the last collectives of every rank."""

from collections.abc import Sequence

from ringtrain.monitor.flight_recorder import RankRecord
from ringtrain.template import joined
from ringtrain.transport.activity import EXCHANGE
from ringtrain.transport.waiting import peers, placed

LISTED = 8  # so many of the last collectives are listed
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


def stall(rows: Sequence[RankRecord], rank: int, gap: str = "") -> str:
    """The ranks that the others wait for, in which collective, and the last collectives of every rank.

    rank: the reader of the rows
    gap:  the ranks whose rows cannot be seen, and why
    """
    number = first_open(rows)
    if number is None:
        return "no collective: none is under way"
    seen = [row for row in rows if row.entries or not gap]
    lines = [_whom(seen, number, bool(gap)), *last_collectives(seen)]
    if gap:
        lines.append(f"not seen from rank {rank}: {gap}")
    return joined(lines)


def first_open(rows: Sequence[RankRecord]) -> int | None:
    """The number of the first collective that a rank has begun and not ended: later ones wait for it. If ranks have
    begun more meanwhile, no rank waits in it yet: then of the first that some rank has not begun. The rows of silent
    ranks are old, and count only if there is no other."""
    for some in ([row for row in rows if row.silent_s is None], rows):
        numbers = [entry.number for row in some for entry in row.entries.values() if not entry.done]
        if numbers:
            first = min(numbers)
            ahead = max(row.last for row in some if first in row.entries and not row.entries[first].done)
            least = min(row.last for row in some if row.entries)
            return least + 1 if first <= least < ahead else first
    return None


def _whom(rows: Sequence[RankRecord], number: int, some: bool) -> str:
    """``some``: some rows are missing."""
    known = [(row, row.entries[number]) for row in rows if number in row.entries]
    absent = [row for row in rows if row.last < number]
    inside = [(row, entry) for row, entry in known if not entry.done]
    waiting = [row.rank for row, _ in inside if row.silent_s is None]
    named = [
        f"{_placed(rows, [row.rank])} has not {'joined it' if row.silent_s is None else 'been seen in it'} "
        f"({whereabouts(row)})"
        for row in absent
    ]
    silent = [row for row in rows if row not in absent and row.silent_s is not None]
    named += [f"{_placed(rows, [row.rank])} is in it, but {_silence(row)}" for row in silent]
    if not named and some:
        named = ["all ranks that are seen here have joined it"]
    if not named:
        moves, last = min((entry.moved, row.rank) for row, entry in inside)
        named = [f"all ranks have joined it, and {_placed(rows, [last])} is the furthest behind, after {moves} moves"]
    if waiting:
        named.append(f"{peers(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in it")
    iteration = max(row.iteration for row in rows)
    when = f", iteration {iteration}" if iteration else ""
    return f"collective {number}, {known[0][1].text}{when}: {'; '.join(named)}"


def _placed(rows: Sequence[RankRecord], ranks: Sequence[int]) -> str:
    return placed(ranks, {row.rank: row.host for row in rows})


def whereabouts(row: RankRecord) -> str:
    """The last collective of a rank, its iteration and its stage."""
    last = row.entries.get(row.last)
    where = f"its last is collective {last.number}, {'' if last.done else 'not '}done" if last else "it has begun none"
    if row.iteration:
        where += f", in iteration {row.iteration}"
    if row.left:
        return f"{where}; it has ended"
    if row.doing:
        where += f"; it is in {row.doing}{_time(row)}"
    return where if row.silent_s is None else f"when last seen: {where}; {_silence(row)}"


def _time(row: RankRecord) -> str:
    return f" for {row.doing_s:.3g} s" if row.silent_s is None and row.doing_s >= 1 else ""


def behind(rows: Sequence[RankRecord]) -> list[int]:
    """The ranks that seem to delay the others: the silent ones, or else those in the earliest iteration, and of these
    the ones that have not come to its exchange; none if all are in one place."""
    silent = [row.rank for row in rows if row.silent_s is not None and not row.left]
    places = [(row.iteration, row.doing == EXCHANGE) for row in rows]
    earliest = min(places)
    late = [row.rank for row, place in zip(rows, places, strict=True) if place == earliest]
    return silent or (late if len(late) < len(rows) else [])


def held_up(rows: Sequence[RankRecord]) -> str:
    """The ranks that are behind, as the end of a sentence; empty if there are none."""
    ranks = behind(rows)
    return f"; the furthest behind {'is' if len(ranks) == 1 else 'are'} {_placed(rows, ranks)}" if ranks else ""


def rank_states(rows: Sequence[RankRecord], rank: int, gap: str = "") -> list[str]:
    """A line for each rank with its stage, for ranks that wait outside of collectives. ``gap``: the ranks whose rows
    ``rank`` cannot see."""
    lines: list[str] = ["activity of every rank:"]
    for row in rows[:RANKS]:
        iteration = f"iteration {row.iteration}, " if row.iteration else ""
        stage = "ended" if row.left else row.doing or "between stages"
        silence = "" if row.silent_s is None else f"; {_silence(row)}"
        lines.append(f"  {_placed(rows, [row.rank])}: {iteration}{stage}{_time(row)}{silence}")
    return [*lines, *([f"not seen from rank {rank}: {gap}"] if gap else [])]


def _silence(row: RankRecord) -> str:
    return f"it has given no sign of life for {row.silent_s:.3g} s: it is stopped, or its node hangs"


def last_collectives(rows: Sequence[RankRecord]) -> list[str]:
    """A line for each of the last collectives: for each call, the ranks on which it is done, those on which it is under
    way, with their moves, and those that have not begun it."""
    newest = max(row.last for row in rows)
    lines: list[str] = ["the last collectives of every rank:"]
    for number in range(max(1, newest - LISTED + 1), newest + 1):
        states = [f"{text}: {_states(rows, ranks, number)}" for text, ranks in _calls(rows, number).items() if text]
        absent = [row for row in rows if row.last < number]
        for verb, ranks in (
            ("begun", [row.rank for row in absent if row.silent_s is None]),
            ("seen", [row.rank for row in absent if row.silent_s is not None]),
        ):
            states += [f"not {verb} on {peers(ranks)}"] if ranks else []
        lines.append(f"  {number}  {'; '.join(states)}")
    return lines


def _states(rows: Sequence[RankRecord], ranks: list[int], number: int) -> str:
    entries = {row.rank: row.entries[number] for row in rows if row.rank in ranks}
    done = [rank for rank, entry in entries.items() if entry.done]
    inside = {rank: entry.moved for rank, entry in entries.items() if not entry.done}
    states = [f"done on {peers(done)}"] if done else []
    if inside:
        moves = f" ({', '.join(map(str, list(inside.values())[:8]))} moves)" if any(inside.values()) else ""
        states.append(f"under way on {peers(inside)}{moves}")
    return ", ".join(states)


def _calls(rows: Sequence[RankRecord], number: int) -> dict[str | None, list[int]]:
    """The ranks of each call under this number; of None, those that have not begun it."""
    calls: dict[str | None, list[int]] = {}
    for row in rows:
        calls.setdefault(row.entries[number].text if number in row.entries else None, []).append(row.rank)
    return calls
