"""Whether a world that goes on and on stays as large as it is."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from worlds.world import MIB, Sample, World

EVERY_S = 1.0
LEAST_GROWTH = MIB  # what counts as growth, of one rank, in the second half of the time that it was watched
LEAST_SAMPLES = 16
BOUND = (
    f"flat: no rank grows by more than {LEAST_GROWTH / MIB:g} MiB in the second half of the time it was watched; "
    "a slower leak is not seen"
)


@dataclass(frozen=True, slots=True)
class Trend:
    """Of one rank, by a line through the later half of its samples: what it does for the first time it has done by
    then. seconds: of all; heap, shared: bytes at the end; slope: bytes a second; growth: bytes from the line's begin to
    its end; files, threads: the least and the most of all"""

    rank: int
    seconds: float
    heap: float
    shared: float
    slope: float
    growth: float
    files: tuple[int, int]
    threads: tuple[int, int]

    @property
    def grows(self) -> bool:
        return (
            self.growth > LEAST_GROWTH or self.files[1] - self.files[0] > FEW or self.threads[1] > self.threads[0] + FEW
        )


FEW = 3  # files that are open for a moment, and threads that copy or save: these may come and go


class Watch:
    """Takes samples of a world, by a thread, until it is stopped. ``settled``: whether all that it does it has done
    before, so that memory is no longer used for the first time."""

    def __init__(self, world: World, settled: Callable[[], bool]):
        self._world, self._settled, self._taken = world, settled, {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not (self._settled() or self._stop.wait(EVERY_S)):
            pass
        while not self._stop.wait(EVERY_S):
            for rank, sample in self._world.samples().items():
                self._taken.setdefault(rank, []).append(sample)

    def stop(self) -> list[Trend]:
        """The trends by rank."""
        self._stop.set()
        self._thread.join()
        return [trend(rank, taken) for rank, taken in sorted(self._taken.items()) if len(taken) >= LEAST_SAMPLES]


def trend(rank: int, taken: list[Sample]) -> Trend:
    later = taken[len(taken) // 2 :]
    seconds = np.array([sample.seconds for sample in later])
    slope, _ = np.polyfit(seconds - seconds[0], [sample.heap + sample.shared for sample in later], 1)
    span = float(seconds[-1] - seconds[0])
    return Trend(
        rank, taken[-1].seconds - taken[0].seconds, taken[-1].heap, taken[-1].shared, float(slope), float(slope) * span,
        _range(taken, lambda sample: sample.files), _range(taken, lambda sample: sample.threads),
    )  # fmt: skip


def _range(samples: list[Sample], value: Callable[[Sample], int]) -> tuple[int, int]:
    values = [value(sample) for sample in samples]
    return min(values), max(values)


def table(trends: list[Trend]) -> list[str]:
    heads = f"{'rank':>4} {'watched':>9} {'own MiB':>8} {'shared':>7} {'MiB/hour':>9} {'growth':>11}"
    lines = [f"{heads} {'files':>9} {'threads':>8}"]
    for one in trends:
        files, threads = (f"{a}" if a == b else f"{a}-{b}" for a, b in (one.files, one.threads))
        lines.append(
            f"{one.rank:>4} {one.seconds:>7.0f} s {one.heap / MIB:>8.1f} {one.shared / MIB:>7.1f} "
            f"{one.slope * 3600 / MIB:>9.2f} {one.growth / MIB:>7.3f} MiB {files:>9} {threads:>8}"
        )
    return lines
