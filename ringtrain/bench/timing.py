"""Samples of several algorithms that can be compared: taken in turns, in a random order that all ranks draw alike.

Whatever drifts (clock rates, neighbours, temperature) then meets all algorithms alike. Ranks are started together by
the transport's barrier; an iteration's time is that of its slowest rank.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringtrain.bench.trials import Job, Trial
from ringtrain.transport.base import Transport

START = "barrier"
LEAST_REPEATS = 3  # whatever the budget: a median of fewer says nothing


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a size is measured.

    repeats:    timed iterations of each algorithm
    warm_up:    iterations before that
    budget_s:   no further repetition begins when a size has taken this long; None for no limit
    cold_bytes: memory that every rank reads and writes before an iteration, to empty its caches; 0 for warm ones
    late_rank:  the rank that is delayed in a further iteration of each algorithm; None for none
    late_s:     by how much
    slow_rank:  the rank that is slower in a further iteration of each algorithm; None for none
    slow_times: how many times slower
    seed:       of the order
    """

    repeats: int = 20
    warm_up: int = 5
    budget_s: float | None = None
    cold_bytes: int = 0
    late_rank: int | None = None
    late_s: float = 0.0
    slow_rank: int | None = None
    slow_times: float = 1.0
    seed: int = 0


@dataclass(slots=True)
class Samples:
    """By iteration: seconds of every rank, in rank order. ``late`` with a delayed rank, ``slow`` with a slower one."""

    plain: list[list[float]] = field(default_factory=list)
    late: list[list[float]] = field(default_factory=list)
    slow: list[list[float]] = field(default_factory=list)

    @property
    def slowest(self) -> list[float]:
        return [max(ranks) for ranks in self.plain]


def measure(
    job: Job, trials: Sequence[Trial], protocol: Protocol, progress: Callable[[int, int], None]
) -> dict[str, Samples]:
    """Samples by the trial's name; collective, the same on all ranks. ``progress(repetition, of)`` is told where it
    is."""
    job.buffers.clear(
        job.contribution
    )  # stays 0 however often it is added in place: no overflow, and every page is there
    scrub = np.ones(protocol.cold_bytes, np.uint8) if protocol.cold_bytes else None
    order, own = random.Random(protocol.seed), {trial.name: Samples() for trial in trials}
    began = time.perf_counter()
    for repetition in range(-protocol.warm_up, protocol.repeats):
        if _spent(job.transport, protocol, repetition, began):
            break
        progress(max(repetition, 0), protocol.repeats)
        for trial in order.sample(list(trials), len(trials)):
            _sample(job.transport, trial, protocol, scrub, own[trial.name] if repetition >= 0 else Samples())
    return _gathered(job.transport, own)


def _spent(transport: Transport, protocol: Protocol, repetition: int, began: float) -> bool:
    """Whether the budget is: rank 0 decides."""
    if protocol.budget_s is None or repetition < LEAST_REPEATS:
        return False
    return transport.gather_json(time.perf_counter() - began > protocol.budget_s)[0]


def _sample(transport: Transport, trial: Trial, protocol: Protocol, scrub, samples: Samples) -> None:
    _empty_caches(scrub)
    samples.plain.append([timed(transport, trial.run)])
    if protocol.late_rank is not None:
        delay_s = protocol.late_s if transport.rank == protocol.late_rank else 0.0
        _empty_caches(scrub)
        samples.late.append([timed(transport, trial.run, delay_s)])
    if protocol.slow_rank is not None and trial.slowed is not None:
        run = trial.slowed(protocol.slow_times) if transport.rank == protocol.slow_rank else trial.run
        _empty_caches(scrub)
        samples.slow.append([timed(transport, run)])


def timed(transport: Transport, action: Callable[[], None], delay_s: float = 0.0) -> float:
    """Seconds from the common start, from which this rank first stays away for ``delay_s``, to the action's end."""
    transport.activity.renew()
    transport.barrier()
    began = time.perf_counter()
    if delay_s:
        time.sleep(delay_s)
    action()
    return time.perf_counter() - began


def _empty_caches(scrub) -> None:
    if scrub is not None:
        np.add(scrub, 1, out=scrub)


def _gathered(transport: Transport, own: dict[str, Samples]) -> dict[str, Samples]:
    ranks = transport.gather_json({name: [s.plain, s.late, s.slow] for name, s in own.items()})
    return {name: Samples(*(map(_joined, zip(*(rank[name] for rank in ranks), strict=True)))) for name in own}


def _joined(ranks: Sequence) -> list[list[float]]:
    return [[value for (value,) in iteration] for iteration in zip(*ranks, strict=True)]
