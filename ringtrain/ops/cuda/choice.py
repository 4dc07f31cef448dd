"""Which of several ways to do the same work is taken: the fastest by a timing at the first call, or always the first.

    key unknown ── recording? ──► first that can be recorded, without a note
         └──────── fixed?     ──► first
         └──────── else       ──► each way twice to warm up, REPEATS times by events; the least median is kept

What is recorded later takes the fastest of those that can be. Timing depends on the moment: results then may differ in
their last bits from run to run, which ``fixed`` rules out.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median

WARMUPS, REPEATS = 2, 5


class Unable(Exception):
    """A way cannot do this work after all; its message says why."""


@dataclass(frozen=True)
class Way:
    """``run``: does the work; what it takes depends on the work. ``recordable``: as part of a graph."""

    name: str
    run: Callable
    recordable: bool = True


@dataclass(frozen=True)
class Chosen:
    """A line of a report. seconds: of each way that was timed; flops: of the work, once."""

    work: Hashable
    name: str
    seconds: dict[str, float]
    flops: int

    @property
    def milliseconds(self) -> float | None:
        return 1e3 * self.seconds[self.name] if self.name in self.seconds else None

    @property
    def flops_per_second(self) -> float | None:
        return self.flops / self.seconds[self.name] if self.seconds.get(self.name) else None


def by_events(device, run: Callable[[], None]) -> float:
    """Seconds on the device."""
    start = device.stream.record(timed=True)
    run()
    end = device.stream.record(timed=True)
    end.wait()
    return end.seconds_since(start)


class Choice:
    """``fixed``: the first way, always. ``measure(device, run)``: seconds; the clock of tests is a list."""

    def __init__(self, fixed: bool = False, measure=by_events):
        self._fixed, self._measure = fixed, measure
        self._chosen: dict[tuple[Hashable, bool], Way] = {}
        self.table: dict[Hashable, Chosen] = {}
        self.notes: dict[str, str] = {}  # why a way was left out, by its name

    def __call__(
        self, device, work: Hashable, ways: Callable[[], Sequence[Way]], trial: Callable[[Way], None], flops=0
    ) -> Way:
        """``trial(way)``: does the work by that way, any number of times, such that only its results are lost."""
        way = self._chosen.get((work, device.recording))
        if way is None:
            able = ways()
            if device.recording:
                return next(way for way in able if way.recordable)
            way = self._take(device, work, able, trial, flops)
        return way

    def _take(self, device, work, able, trial, flops):
        if self._fixed or len(able) == 1:
            return self._keep(work, [able[0], *able[1:]], {}, flops)
        seconds = {}
        for way in able:
            took = self._time(device, way, trial)
            if took is not None:
                seconds[way.name] = took
        timed = sorted((way for way in able if way.name in seconds), key=lambda way: seconds[way.name])
        return self._keep(work, timed, seconds, flops)

    def _keep(self, work, ordered, seconds, flops):
        self._chosen[work, False] = ordered[0]
        self._chosen[work, True] = next(way for way in ordered if way.recordable)
        self.table[work] = Chosen(work, ordered[0].name, seconds, flops)
        return ordered[0]

    def _time(self, device, way, trial) -> float | None:
        try:
            for _ in range(WARMUPS):
                trial(way)
            return median(self._measure(device, lambda: trial(way)) for _ in range(REPEATS))
        except Unable as error:
            self.notes.setdefault(way.name, str(error))
            return None
