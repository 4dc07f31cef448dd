"""Tells at the end of a run whether another all-reduce is faster, on this machine with its load at that time.

A run keeps its algorithm, and so the bits of its sums: it measures, and the user decides.
"""

import time
from statistics import median

from ringtrain.allreduce.auto import usual_order
from ringtrain.allreduce.catalogue import auto_name, find_candidates, make_allreduce
from ringtrain.allreduce.dtypes import TYPES
from ringtrain.arrays import Array
from ringtrain.collectives.execution.reduction import NATIVE
from ringtrain.errors import StalledError, TransportError
from ringtrain.exchange.tags import MEASURED
from ringtrain.humanize import format_bytes, format_seconds
from ringtrain.train.assembly.assemble import Assembly

FLOAT32 = TYPES["float32"]
ROUNDS, LONGEST_S = 5, 2.0  # after a first round, which is not counted; as many as the seconds allow
MOST_BYTES = 16 << 20  # of a buffer that is measured
WORTH = 1.25  # times as fast


def faster_algorithm_note(run: Assembly, share: float) -> str | None:
    """A note if another all-reduce takes less time than the all-reduce of the run's largest bucket; else None, as where
    it cannot be measured: the run is done, however that ends. Collective. ``share``: of the training, that the exchange
    blocked.
    """
    transport, (nbytes, algorithm) = run.transport, _largest_bucket(run)
    if not nbytes:
        return None
    nbytes = min(nbytes, MOST_BYTES)
    buffer = transport.allocate(nbytes // FLOAT32.itemsize, FLOAT32.storage)
    choices = find_candidates(transport, buffer, FLOAT32.name)
    if algorithm not in choices.candidates:
        return None
    names = dict.fromkeys([algorithm, NATIVE, *usual_order(nbytes, choices.layout)])
    try:
        seconds = _measure(run, buffer, [name for name in names if name in choices.candidates])
    except (StalledError, TransportError):
        return None
    fastest = min(seconds, key=lambda name: seconds[name])
    if seconds[algorithm] < WORTH * seconds[fastest]:
        return None
    return (
        f"the exchange blocked {share:.0%} of the training. As the run ended, an all-reduce of {format_bytes(nbytes)} "
        f"took {format_seconds(seconds[algorithm])} by {algorithm}, and {format_seconds(seconds[fastest])} by "
        f"{fastest}, whose sums may round otherwise: --algorithm {fastest} may be faster"
    )


def _largest_bucket(run: Assembly) -> tuple[int, str]:
    """Return (bytes, algorithm) of the run's largest all-reduce; 0 bytes if no other algorithm could take its place."""
    config, facts = run.config, run.exchange.facts
    plain = config.exchange.sync == "allreduce" and config.exchange.wire == config.exchange.compress == "none"
    if not plain or facts.shards is not None or run.ops.records:
        return 0, ""
    largest = max(run.exchange.reducers.traffic().buckets, key=lambda bucket: bucket.nbytes, default=None)
    return (largest.nbytes, largest.algorithm.removeprefix(auto_name(""))) if largest else (0, "")


def _measure(run: Assembly, buffer: Array, names: list[str]) -> dict[str, float]:
    """Return the seconds of an all-reduce by each algorithm, in turns: the median of the slowest rank's. Collective."""
    transport, deadline_s, add = run.transport, run.config.exchange.deadline_s, FLOAT32.combine("sum")
    reductions = {
        name: make_allreduce(transport, buffer, name, add, tag=MEASURED + at) for at, name in enumerate(names)
    }

    def measured_round() -> dict[str, float]:
        seconds = {}
        for name, reduction in reductions.items():
            transport.barrier()
            began = time.perf_counter()
            reduction.run(deadline_s)
            seconds[name] = time.perf_counter() - began
        every = transport.gather_json(seconds)
        return {name: max(ranks[name] for ranks in every) for name in names}

    with transport.activity.during("measuring all-reduces"):
        first_s = sum(measured_round().values())
        rounds = [measured_round() for _ in range(max(1, min(ROUNDS, int(LONGEST_S / first_s))))]
    return {name: median(each[name] for each in rounds) for name in names}
