"""Messages from the rows of the flight recorder: the ranks that made another call, the ranks that the others wait for,
and the last collectives of every rank."""

from collections.abc import Callable, Sequence
from functools import partial

from ringtrain.monitor import texts
from ringtrain.monitor.flight_recorder import RankRecord, RecordedCollective
from ringtrain.template import Template
from ringtrain.transport.waiting import peers, placed

TOLD = 8  # so many of the last collectives are listed
RANKS = 64  # so many ranks are listed


def mismatch(rows: Sequence[RankRecord], number: int) -> str | None:
    """The calls of all ranks under this number; None if they are equal. The call of most ranks is the expected one; of
    two calls of equally many ranks, that of the lowest rank."""
    calls = _grouped(rows, lambda row: row.entries[number].text if number in row.entries else None)
    made = sorted((text for text in calls if text), key=lambda text: (-len(calls[text]), calls[text][0]))
    if len(made) < 2:
        return None
    others = "".join(texts.GOT(ranks=_placed(rows, calls[text]), call=text) for text in made[1:])
    if None in calls:
        others += texts.ABSENT(ranks=peers(calls[None]))
    return texts.MISMATCH(number=number, ranks=peers(calls[made[0]]), call=made[0], others=others)


def stall(rows: Sequence[RankRecord], rank: int, quiet: Callable[[int], float | None], gap: str = "") -> str:
    """The ranks that the others wait for, in which collective, and the last collectives of every rank.

    rank:  the reader of the rows
    quiet: quiet(rank) → for how many seconds it has given no sign of life; None if it gives them
    gap:   the ranks whose rows cannot be seen, and why
    """
    number = first_open(rows, quiet)
    if number is None:
        return texts.NONE_OPEN
    seen = [row for row in rows if row.entries or not gap]
    lines = [_whom(seen, number, quiet, bool(gap)), *last_collectives(seen, quiet)]
    if gap:
        lines.append(texts.NOT_SEEN(rank=rank, gap=gap))
    return "\n".join(lines)


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
    named = [
        _joined(quiet(row.rank))(rank=_placed(rows, [row.rank]), whereabouts=_whereabouts(row, quiet)) for row in absent
    ]
    named += [texts.SILENT_IN(rank=_placed(rows, [row.rank]), silence=_life(seconds)) for row, seconds in silent]
    if not named and some:
        named = [texts.SEEN_JOINED]
    if not named:
        moves, last = min((entry.moved, rank) for rank, entry in known.items() if entry and not entry.done)
        named = [texts.LEAST_MOVED(rank=_placed(rows, [last]), moves=moves)]
    if waiting:
        named.append((texts.WAITS_IN if len(waiting) == 1 else texts.WAIT_IN)(ranks=peers(waiting)))
    iteration = max(row.iteration for row in rows)
    if iteration:
        return texts.OPEN_IN_ITERATION(number=number, call=text, iteration=iteration, ranks="; ".join(named))
    return texts.OPEN(number=number, call=text, ranks="; ".join(named))


def _joined(silent_s: float | None) -> Template:
    return texts.NOT_JOINED if silent_s is None else texts.NOT_SEEN_IN


def _placed(rows: Sequence[RankRecord], ranks: Sequence[int]) -> str:
    """With hosts."""
    return placed(ranks, {row.rank: row.host for row in rows})


def _whereabouts(row: RankRecord, quiet: Callable[[int], float | None]) -> str:
    last = row.entries.get(row.last)
    where = texts.BEGUN_NONE if last is None else _state(last)
    if row.iteration:
        where += texts.IN_ITERATION(iteration=row.iteration)
    if row.left:
        return texts.HAS_ENDED(whereabouts=where)
    silent_s = quiet(row.rank)
    if silent_s is not None:
        return texts.LAST_SEEN(whereabouts=where + _doing(row, False), silence=_life(silent_s))
    return where + _doing(row, True)


def _doing(row: RankRecord, alive: bool) -> str:
    return texts.IN_STAGE(stage=row.doing) + _time(row, alive) if row.doing else ""


def _time(row: RankRecord, alive: bool) -> str:
    return texts.FOR_SECONDS(seconds=row.doing_s) if alive and row.doing_s >= 1 else ""


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
        return texts.ONE_BEHIND(rank=_placed(rows, ranks))
    return texts.SEVERAL_BEHIND(ranks=_placed(rows, ranks)) if ranks else ""


def rank_states(
    rows: Sequence[RankRecord], quiet: Callable[[int], float | None], gap: str = "", rank: int = 0
) -> list[str]:
    """A line for each rank with its stage, for ranks that wait outside of collectives. ``gap``: the ranks whose rows
    ``rank`` cannot see."""
    lines: list[str] = [texts.ACTIVITIES]
    for row in rows[:RANKS]:
        silent_s = quiet(row.rank)
        lines.append(
            texts.ACTIVITY(
                rank=_placed(rows, [row.rank]),
                iteration=texts.ACTIVITY_ITERATION(iteration=row.iteration) if row.iteration else "",
                stage=texts.ENDED if row.left else row.doing or texts.BETWEEN_STAGES,
                time=_time(row, silent_s is None),
                silence="" if silent_s is None else f"; {_life(silent_s)}",
            )
        )
    return [*lines, *([texts.NOT_SEEN(rank=rank, gap=gap)] if gap else [])]


def _state(entry: RecordedCollective) -> str:
    return (texts.LAST_DONE if entry.done else texts.LAST_OPEN)(number=entry.number)


def _life(seconds: float) -> str:
    return texts.SILENT(seconds=seconds)


def last_collectives(rows: Sequence[RankRecord], quiet: Callable[[int], float | None]) -> list[str]:
    """A line for each of the last collectives: for each call, the ranks on which it is done, those on which it is under
    way, with their moves, and those that have not begun it."""
    newest = max(row.last for row in rows)
    lines: list[str] = [texts.LAST_COLLECTIVES]
    for number in range(max(1, newest - TOLD + 1), newest + 1):
        absent = [row.rank for row in rows if row.last < number]
        calls = _grouped(rows, partial(_call_text, number))
        states = [
            texts.CALL_STATES(call=text, states=_states(rows, ranks, number)) for text, ranks in calls.items() if text
        ]
        lines.append(texts.COLLECTIVE(number=number, states="; ".join([*states, *_absent(absent, quiet)])))
    return lines


def _call_text(number: int, row: RankRecord) -> str | None:
    return row.entries[number].text if number in row.entries else None


def _absent(ranks: list[int], quiet: Callable[[int], float | None]) -> list[str]:
    silent = [rank for rank in ranks if quiet(rank) is not None]
    known = [rank for rank in ranks if rank not in silent]
    groups = ((texts.NOT_BEGUN, known), (texts.NOT_SEEN_ON, silent))
    return [told(ranks=peers(these)) for told, these in groups if these]


def _states(rows: Sequence[RankRecord], ranks: list[int], number: int) -> str:
    entries = {row.rank: row.entries[number] for row in rows if row.rank in ranks}
    done = [rank for rank, entry in entries.items() if entry.done]
    inside = {rank: entry.moved for rank, entry in entries.items() if not entry.done}
    states = [texts.DONE_ON(ranks=peers(done))] if done else []
    if inside:
        moves = ", ".join(map(str, list(inside.values())[:8]))
        under_way = texts.UNDER_WAY_MOVES(ranks=peers(inside), moves=moves)
        states.append(under_way if any(inside.values()) else texts.UNDER_WAY(ranks=peers(inside)))
    return ", ".join(states)


def _grouped(rows: Sequence[RankRecord], key: Callable[[RankRecord], str | None]) -> dict[str | None, list[int]]:
    """Ranks by key."""
    groups: dict[str | None, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row.rank)
    return groups
