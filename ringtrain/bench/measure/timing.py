"""Comparable samples of several algorithms: taken in turns, in a random order that is the same on all ranks.

Drifts (clock rates, neighbours, temperature) then affect all algorithms alike. The transport's barrier starts ranks
together; an iteration takes as long as its slowest rank.

Every rank writes its contribution before each iteration, outside the clock, as backward writes a gradient. Otherwise
the memory would still be in the readers' caches from the last iteration: an all-reduce in shared memory would then move
almost nothing between cores, and look up to three times as fast as it is in training.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ringtrain.bench.measure.trials import PreparedTrial
from ringtrain.transport.base import Transport

START = "barrier"
LEAST_REPEATS = 3  # for any budget: a median of fewer means nothing
# On any core of the node, though a rank may be bound to one; and not for longer than the rank lives.
BUSY = """
import os, sys
os.sched_setaffinity(0, range(os.cpu_count()))
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000): pass
"""


@dataclass(frozen=True, slots=True)
class Protocol:
    """The settings of a measurement."""

    repeats: int = 20  # timed iterations of each algorithm
    warm_up: int = 5  # iterations before them
    budget_s: float | None = None  # no further repetition begins when a size has taken this long; None for no limit
    cold_bytes: int = 0  # memory that every rank reads and writes before an iteration, to empty its caches; 0 for none
    seed: int = 0  # of the order
    beside: int = 0  # busy processes on each node while all-reduces are measured


Samples = list[list[float]]  # by iteration: the seconds of every rank, in rank order


def measure_trials(
    transport: Transport, trials: Sequence[PreparedTrial], protocol: Protocol, progress: Callable[[int, int], None]
) -> list[Samples]:
    """Return the samples of each trial; collective, the same on all ranks. ``progress(repetition, of)`` is called
    before each repetition.
    """

    def seconds(trial: PreparedTrial) -> float:
        trial.job.buffers.clear(trial.job.contribution)  # zeros stay zeros when they are added: no type overflows
        _empty_caches(scrub)
        return timed(transport, trial.run)

    scrub = np.ones(protocol.cold_bytes, np.uint8) if protocol.cold_bytes else None
    order, began = random.Random(protocol.seed), time.perf_counter()
    samples: list[list[float]] = [[] for _ in trials]  # of this rank
    for repetition in range(-protocol.warm_up, protocol.repeats):
        limit_s = protocol.budget_s if repetition >= LEAST_REPEATS else None
        if limit_s is not None and transport.gather_json(time.perf_counter() - began > limit_s)[0]:  # rank 0 decides
            break
        progress(max(repetition, 0), protocol.repeats)
        for turn in order.sample(range(len(trials)), len(trials)):
            sample = seconds(trials[turn])
            samples[turn] += [sample] if repetition >= 0 else []
    by_trial = zip(*transport.gather_json(samples), strict=True)  # of every rank
    return [np.transpose(ranks).tolist() for ranks in by_trial]  # [rank, iteration] turned round


def timed(transport: Transport, action: Callable[[], None]) -> float:
    """Return the seconds from the common start to the end of the action."""
    transport.activity.touch()
    transport.barrier()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _empty_caches(scrub) -> None:
    if scrub is not None:
        np.add(scrub, 1, out=scrub)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep ``count`` processes of this node computing, as other jobs and the workers of loaders do."""
    command = [sys.executable, "-I", "-S", "-c", BUSY, str(os.getpid())]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
