"""Comparable samples of several algorithms: taken in turns, in a random order that is the same on all ranks.

Drifts (clock rates, neighbours, temperature) then affect all algorithms alike. The transport's barrier starts ranks
together; an iteration takes as long as its slowest rank.

Every rank writes its contribution before each iteration, outside the clock, as backward writes a gradient. Otherwise
the memory would still be in the readers' caches from the last iteration: an all-reduce in shared memory would then move
almost nothing between cores, and look up to three times as fast as it is in training.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.bench.measure.trials import ContenderTrial, MeasuredAllReduce
from ringtrain.transport.base import Transport

START = "barrier"
LEAST_REPEATS = 3  # for any budget: a median of fewer means nothing


@dataclass(frozen=True, slots=True)
class Protocol:
    """The settings of a measurement.

    repeats:    timed iterations of each algorithm
    warm_up:    iterations before them
    budget_s:   no further repetition begins when a size has taken this long; None for no limit
    fresh:      whether every rank writes its contribution before an iteration, instead of keeping the last result
    cold_bytes: memory that every rank reads and writes before an iteration, to empty its caches; 0 for none
    late_rank:  the rank that is delayed in a further iteration of each algorithm; None for none
    late_s:     the delay
    seed:       of the order
    beside:     busy processes on each node while all-reduces are measured
    """

    repeats: int = 20
    warm_up: int = 5
    budget_s: float | None = None
    fresh: bool = True
    cold_bytes: int = 0
    late_rank: int | None = None
    late_s: float = 0.0
    seed: int = 0
    beside: int = 0


@dataclass(slots=True)
class Samples:
    """Samples by iteration: seconds of every rank, in rank order. ``late``: with a delayed rank."""

    plain: list[list[float]] = field(default_factory=list)
    late: list[list[float]] = field(default_factory=list)

    @property
    def slowest(self) -> list[float]:
        return [max(ranks) for ranks in self.plain]


def measure_trials(
    transport: Transport, entries: Sequence[ContenderTrial], protocol: Protocol, progress: Callable[[int, int], None]
) -> list[Samples]:
    """Return the samples of each entry; collective, the same on all ranks. ``progress(repetition, of)`` is called
    before each repetition.
    """
    for job, _ in entries:
        _write(job)
    scrub = np.ones(protocol.cold_bytes, np.uint8) if protocol.cold_bytes else None
    order, samples = random.Random(protocol.seed), [Samples() for _ in entries]
    began = time.perf_counter()
    for repetition in range(-protocol.warm_up, protocol.repeats):
        if _spent(transport, protocol, repetition, began):
            break
        progress(max(repetition, 0), protocol.repeats)
        for turn in order.sample(range(len(entries)), len(entries)):
            _sample(transport, entries[turn], protocol, scrub, samples[turn] if repetition >= 0 else Samples())
    return _gathered(transport, samples)


def _write(job: MeasuredAllReduce) -> None:
    """Write zeros: they stay zeros however often they are added in place, so that no type overflows."""
    job.buffers.clear(job.contribution)


def _spent(transport: Transport, protocol: Protocol, repetition: int, began: float) -> bool:
    """Whether the budget is spent: rank 0 decides."""
    if protocol.budget_s is None or repetition < LEAST_REPEATS:
        return False
    return transport.gather_json(time.perf_counter() - began > protocol.budget_s)[0]


def _sample(transport: Transport, entry: ContenderTrial, protocol: Protocol, scrub, samples: Samples) -> None:
    def after_writing(run: Callable[[], None], delay_s: float = 0.0) -> list[float]:
        if protocol.fresh:
            _write(entry.job)
        _empty_caches(scrub)
        return [timed(transport, run, delay_s)]

    trial = entry.trial
    samples.plain.append(after_writing(trial.run))
    if protocol.late_rank is not None:
        delay_s = protocol.late_s if transport.rank == protocol.late_rank else 0.0
        samples.late.append(after_writing(trial.run, delay_s))


def timed(transport: Transport, action: Callable[[], None], delay_s: float = 0.0) -> float:
    """Return the seconds from the common start to the end of the action. This rank first waits for ``delay_s``."""
    transport.activity.touch()
    transport.barrier()
    began = time.perf_counter()
    if delay_s:
        time.sleep(delay_s)
    action()
    return time.perf_counter() - began


def _empty_caches(scrub) -> None:
    if scrub is not None:
        np.add(scrub, 1, out=scrub)


def _gathered(transport: Transport, samples: Sequence[Samples]) -> list[Samples]:
    ranks = transport.gather_json([[s.plain, s.late] for s in samples])
    return [Samples(*map(_joined, zip(*by_rank, strict=True))) for by_rank in zip(*ranks, strict=True)]


def _joined(ranks: Sequence) -> list[list[float]]:
    return [[value for (value,) in iteration] for iteration in zip(*ranks, strict=True)]
