"""Contestants that are timed in turns."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """One contestant. ``iterate`` issues an iteration, ``finish`` waits for all issued ones."""

    name: str
    iterate: Callable[[], None]
    finish: Callable[[], None]


def block(side: Side, iterations: int) -> float:
    """Return the seconds of an iteration."""
    began = time.perf_counter()
    for _ in range(iterations):
        side.iterate()
    side.finish()
    return (time.perf_counter() - began) / iterations


def interleaved(sides: list[Side], options) -> dict[str, float]:
    """Return the median seconds of an iteration by side."""
    for side in sides:
        block(side, options.warm_up)
    samples = {side.name: [] for side in sides}
    for _ in range(options.blocks):
        for side in sides:
            samples[side.name].append(block(side, options.iterations))
    return {name: statistics.median(found) for name, found in samples.items()}
