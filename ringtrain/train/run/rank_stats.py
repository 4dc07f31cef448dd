"""Gathers statistics of all ranks: work, traffic, memory."""

import resource
from contextlib import suppress

from ringtrain.report.end_events import Ranks
from ringtrain.train.assembly.assemble import Assembly

FORGET_PEAK = "5"  # written to a process's clear_refs on Linux. Source: proc_pid_clear_refs(5)


class RankStatistics:
    """Statistics of one run. ``training_s``: seconds of its iterations; ``waited_s``: seconds in which this rank waited
    for its examples, before these. The caller adds them."""

    def __init__(self, run: Assembly):
        self._run, self._transport = run, run.transport
        self.training_s = self.waited_s = 0.0

    def sent(self) -> int | None:
        """The bytes that all ranks have sent by the exchange; None if they are not counted. Collective."""
        return sum(self._transport.gather_json(self._run.exchange.reducers.traffic().bytes_sent)) or self._no_bytes

    def ranks(self) -> Ranks:
        """The statistics of all ranks; collective."""
        every = self._transport.gather_json(self._own())
        by_rank = {name: [values[name] for values in every] for name in every[0]}
        if not any(by_rank["bytes_sent"]):
            by_rank["bytes_sent"] = by_rank["between_bytes"] = [self._no_bytes] * len(every)
        lag = self._run.exchange.serving.lag()
        return Ranks(**by_rank, lag={"clock": lag.clocks, "version": lag.versions} if lag else None)

    @property
    def exposed_s(self) -> float:
        """The seconds that this rank has waited for communication."""
        return self._run.exchange.reducers.exposed_s + self._run.worker.in_layers_s

    @property
    def _no_bytes(self) -> int | None:
        """The record of no counted bytes: one rank alone sends none; of several ranks, the MPI's own all-reduce has
        sent them uncounted."""
        return 0 if self._transport.size == 1 else None

    def _own(self) -> dict:
        traffic, arena = self._run.exchange.reducers.traffic(), self._run.arena
        nbytes = arena.count * arena.weights.dtype.itemsize
        return {
            "images": self._run.worker.images,
            "updates": self._run.worker.updates,
            "training_s": self.training_s,
            "waited_s": self.waited_s,
            "exposed_s": self.exposed_s,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "between_bytes": self._transport.links.between_bytes,
            "weights_bytes": nbytes,
            "gradient_bytes": nbytes,
            "state_bytes": self._run.exchange.facts.state_bytes,
            "peak_bytes": peak_bytes(),
        }


def forget_peak() -> None:
    """Reset :func:`peak_bytes`, if the system can: another run of this process may have had more."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write(FORGET_PEAK)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
