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

from ringtrain.errors import DeviceFullError

WARMUPS, REPEATS = 2, 5


class Unable(Exception):
    """A way cannot do this work after all; its message says why. So it is with one that there is no memory for."""


@dataclass(frozen=True)
class Way:
    """``run``: does the work; what it takes depends on the work. ``recordable``: as part of a graph."""

    name: str
    run: Callable
    recordable: bool = True


@dataclass(frozen=True)
class Chosen:
    """A line of a report. names: of the ways that can do it, best first; seconds: of each that was timed; flops: of the
    work, once."""

    names: tuple[str, ...]
    seconds: dict[str, float]
    flops: int

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def milliseconds(self) -> float | None:
        return 1e3 * self.seconds[self.name] if self.seconds else None

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
    """``fixed``: the first way, always. ``measure(device, run)``: seconds; the clock of tests is a list.

    Streams of a device share what was found out; ways belong to one each.
    """

    def __init__(self, fixed: bool = False, measure=by_events):
        self._fixed, self._measure = fixed, measure
        self._ways: dict[tuple, Way] = {}  # by device, work, and whether it is recorded
        self.table: dict[Hashable, Chosen] = {}
        self.notes: dict[str, str] = {}  # why a way was left out, by its name

    def __call__(
        self, device, work: Hashable, ways: Callable[[], Sequence[Way]], trial: Callable[[Way], None], flops=0
    ) -> Way:
        """``trial(way)``: does the work by that way, any number of times, such that only its results are lost."""
        way = self._ways.get((device, work, device.recording))
        return way or self._find(device, work, ways(), trial, flops)

    def _find(self, device, work, able, trial, flops) -> Way:
        if work not in self.table:
            if device.recording:
                return _recordable(able)
            seconds = {} if self._fixed or len(able) == 1 else self._time_all(device, able, trial)
            names = sorted(seconds, key=seconds.get) or [way.name for way in able]
            self.table[work] = Chosen(tuple(names), seconds, flops)
        by_name = {way.name: way for way in able}
        ordered = [by_name[name] for name in self.table[work].names]
        self._ways[device, work, False], self._ways[device, work, True] = ordered[0], _recordable(ordered)
        return self._ways[device, work, device.recording]

    def _time_all(self, device, able, trial) -> dict[str, float]:
        times = ((way.name, self._time(device, way, trial)) for way in able)
        return {name: seconds for name, seconds in times if seconds is not None}

    def _time(self, device, way, trial) -> float | None:
        try:
            for _ in range(WARMUPS):
                trial(way)
            return median(self._measure(device, lambda: trial(way)) for _ in range(REPEATS))
        except (Unable, DeviceFullError) as error:
            self.notes.setdefault(way.name, str(error))
            return None


def _recordable(ways) -> Way:
    return next(way for way in ways if way.recordable)
