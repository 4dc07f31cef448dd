"""Tells if a rank's share is too small: its exchange takes longer than the work that could hide it.

With a tuning file this is known before the first iteration: the file has the times of the all-reduces, and the passes
during which they travel are timed. Without one, and on a device, whose passes the host's clock does not time, the first
iterations show it. There a rank that waits for a slower one is blocked too, so in each iteration the rank that is
blocked least counts. The share that would do follows from the times of two sizes: at small ones much of a pass does not
depend on the number of examples.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from ringtrain.data.batches.sampler import largest_part
from ringtrain.humanize import format_bytes, format_seconds, plural
from ringtrain.template import Template
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.step.partition import blank_batch

FIRST, LAST = 3, 12  # iterations of a start that count: before them ranks find their pace
FEWEST = 4  # iterations of an epoch: else most of them come after a meeting
MOST_BLOCKED = 0.25  # of an iteration, by the exchange
ENOUGH = 32  # examples of a share that is timed: those of fewer hardly show a slope
TRIALS, TRIALS_S = 3, 1.0  # of a size at most: their number, and the seconds after which no other begins

Point = tuple[int, float]  # (examples, seconds)
Passes = list[dict[str, float]]  # seconds of "forward" and "backward", by micro-batch
Clock = Callable[[], float]
ORIGIN = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a batch among the ranks that train. ``grain``: examples that stay together"""

    batch: int
    ranks: int
    grain: int = 1

    @property
    def share(self) -> int:
        """The examples of the largest share."""
        return largest_part(self.batch, self.ranks, self.grain)

    def words(self, least: int) -> dict[str, str]:
        """This share, at least so many examples in whole grains, and a division with such shares, for a note."""
        least = -(-least // self.grain) * self.grain
        fewer, larger = self.batch // least, least * self.ranks
        division = f"--batch {larger} on {self.ranks} ranks"
        if fewer > 1:
            division = f"--batch {self.batch} on at most {fewer} ranks"
        return {
            "examples": plural(self.share, "example"),
            "least": plural(least, "example"),
            "division": division,
        }


def least_examples(one: Point, other: Point, seconds: float) -> int:
    """The examples whose work takes ``seconds``, on the line through two points; on the line from no examples to the
    larger share if that did not take longer; noise may take all of its time away."""
    (few, soon), (many, late) = sorted((one, other))
    if late <= soon:
        (few, soon), late = ORIGIN, late or soon
    return ceil(few + (seconds - soon) * (many - few) / (late - soon))


def other_size(here: Point, seconds: float) -> int:
    """The examples of a second share to time. It takes little memory: at most that of twice the examples that would do
    if work grew in proportion."""
    return here[0] // 2 if here[0] >= ENOUGH else min(ENOUGH, 2 * least_examples(ORIGIN, here, seconds))


def timed(run: Assembly, count: int, total: Callable[[Passes], float], clock: Clock = time.perf_counter) -> Point:
    """``count`` and the ``total`` of the passes of so many examples, the median over ranks. Collective; gradients are
    lost."""
    trials = list[float]()
    with run.batches(run.transport, 0, 1) as batches, run.transport.activity.during("timing passes"):
        blank = blank_batch(next(batches), count)
        while len(trials) < TRIALS and sum(trials) < TRIALS_S:
            trials.append(total(run.worker.rehearse(blank, clock)))
        run.worker.passes.forget()  # a larger share's memory is not kept
        return count, median(run.transport.gather_json(min(trials)))


# ── before the first iteration ────────────────────────────────────────────────────────────────────────────────
def expected_note(run: Assembly, clock: Clock = time.perf_counter) -> str | None:
    """A note if the passes of a share take less than the exchange, by the tuning file; else None. Collective; gradients
    are lost."""
    names, exchange_s, division = run.exchange.facts.hidden_by, _expected_s(run), _division(run)
    if not names or exchange_s is None:
        return None

    def hiding(passes: Passes) -> float:
        return sum(passes[-1][name] for name in names)

    for count in sorted({min(ENOUGH, division.share), division.share}):  # a large share takes long: first some of it
        here = timed(run, count, hiding, clock)
        if here[1] >= exchange_s:
            return None
    other = timed(run, other_size(here, exchange_s), hiding, clock)
    return Template(
        "a rank's share of {examples} is too small to hide the exchange: the all-reduce of {size} takes {exchange} "
        "by the tuning file, and {passes} {others}. Shares of about {least} take as long: {division}"
    )(
        size=format_bytes(run.arena.count * run.arena.grads.dtype.itemsize),
        exchange=format_seconds(exchange_s),
        passes=" and ".join(names),
        others=format_seconds(here[1]),
        **division.words(least_examples(here, other, exchange_s)),
    )


# ── after the first iterations ────────────────────────────────────────────────────────────────────────────────
def typical(every: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """(seconds in which the exchange blocks an iteration, seconds of all else): medians. ``every``: by rank, (blocked,
    whole) seconds of each iteration."""
    least_blocked = [min(map(tuple, ranks)) for ranks in zip(*every, strict=True)]
    return median(blocked for blocked, _ in least_blocked), median(whole - own for own, whole in least_blocked)


class FirstIterations:
    """Measures the first iterations of a start, unless there is nothing to hide, or a tuning file has told before."""

    def __init__(self, run: Assembly):
        self._run = run
        hides = run.transport.size > 1 and run.exchange.facts.hidden_by
        # Ranks meet at the end of an epoch, and the exchange of another kind of gradient comes later.
        alike = run.sampler.iterations_per_epoch >= FEWEST and not run.config.compress_from
        self._measuring = bool(hides) and alike and _expected_s(run) is None
        self._blocked_s = 0.0  # by the exchange so far
        self._times: list[tuple[float, float]] = []  # (blocked, whole) seconds of each iteration

    def tick(self, seconds: float) -> None:
        """Count an iteration of so many seconds."""
        if self._measuring:
            before, self._blocked_s = self._blocked_s, self._run.exchange.reducers.exposed_s
            self._times.append((self._blocked_s - before, seconds))

    def note(self) -> str | None:
        """The note after the last of them, once, if the exchange blocks more than MOST_BLOCKED of an iteration; else
        None. Collective."""
        if not self._measuring or len(self._times) < LAST:
            return None
        self._measuring, division = False, _division(self._run)
        blocked_s, others_s = typical(self._run.transport.gather_json(self._times[FIRST - 1 :]))
        enough_s = blocked_s * (1 / MOST_BLOCKED - 1)  # of other work
        if others_s >= enough_s:
            return None
        here = division.share, others_s
        return Template(
            "a rank's share of {examples} is too small to hide the exchange: it blocks {blocked} of {whole} in an "
            "iteration (medians of iterations {first} to {last}). Less than {most:.0%} takes shares of {least} or "
            "more: {division}"
        )(
            blocked=format_seconds(blocked_s),
            whole=format_seconds(blocked_s + others_s),
            first=FIRST,
            last=LAST,
            most=MOST_BLOCKED,
            **division.words(least_examples(self._other(here, enough_s), here, enough_s)),
        )

    def _other(self, here: Point, seconds: float) -> Point:
        """A second point: the time of all else changes with that of the passes. On a device these cannot be timed by
        the host's clock, and shards are cut by the batch's size: there all work is in proportion to the examples."""
        run = self._run
        if run.ops.records or run.exchange.facts.shards is not None:
            return ORIGIN
        run.exchange.synchronize()  # sums under way need the gradients that are lost
        (_, own_s), (count, other_s) = (timed(run, size, _whole) for size in (here[0], other_size(here, seconds)))
        return count, max(0.0, here[1] + other_s - own_s)


def _expected_s(run: Assembly) -> float | None:
    """Seconds of an iteration's exchange that can be compared with passes before the first iteration; else None."""
    return None if run.ops.records else run.exchange.reducers.expected_s


def _whole(passes: Passes) -> float:
    return sum(sum(micro.values()) for micro in passes)


def _division(run: Assembly) -> Division:
    return Division(run.config.batch, len(run.roles.trainers), run.grain)
