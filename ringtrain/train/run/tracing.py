"""``--trace``: a timeline of this rank in a few iterations (:mod:`ringtrain.report.trace`).

For these iterations the tracer replaces the hooks of the worker and watches the exchange's reducers; it costs nothing
outside of them. Times are the host's, counted from a barrier; a device also has times of its own, by marks.
"""

import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from ringtrain.config.record import RunConfig
from ringtrain.errors import ConfigError
from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Mark, Ops
from ringtrain.report.trace import DEVICE, LEAST_NS, LOOP, Slice, write_trace
from ringtrain.train.step.instructions import Forward, Update
from ringtrain.train.step.worker import Worker
from ringtrain.transport.base import Transport

WINDOW = (6, 8)  # iterations of a start, after those in which ranks find their pace


def window_of(config: RunConfig, begun: int) -> range:
    """The iterations to trace, from 0, of a run that begins at iteration ``begun``. Raises ConfigError."""
    if config.trace is not None and Path(config.trace).name in ("", ".."):
        raise ConfigError(
            f"--trace is {config.trace!r}, a folder; it wants a file, a bare name of one in the run folder"
        )
    return range(begun + WINDOW[0] - 1, begun + WINDOW[1])


class DeviceTimes:
    """The times of a device's work, by marks between it."""

    def __init__(self, ops: Ops):
        self._ops = ops
        self._marks: list[tuple[Mark, str | None, str | None]] = []  # (mark, the work before it or None, its layer)

    def begin(self) -> None:
        self._ops.synchronize()
        self._zero, self._mark_zero = time.perf_counter_ns(), self._ops.mark(timed=True)

    def mark(self, verb: str | None = None, layer: str | None = None) -> None:
        """Mark the end of the work that was issued since the last mark."""
        self._marks.append((self._ops.mark(timed=True), verb, layer))

    def read(self) -> list[tuple[str, int, int]]:
        """Wait for the work of all marks; each by its name, with its times. Of layers that are computed at once one has
        all the time."""
        self._ops.synchronize()
        moments = [self._zero + round(1e9 * mark.seconds_since(self._mark_zero)) for mark, *_ in self._marks]
        names = [" ".join(filter(None, (verb, layer))) for _, verb, layer in self._marks[1:]]
        self._marks = []
        return [(name, *times) for name, times in zip(names, pairwise(moments), strict=True) if name]


class Tracer:
    """Traces this rank. ``window``: the iterations, from 0; ``path``: the file on rank 0, else None"""

    def __init__(self, worker: Worker, transport: Transport, window: range, path: Path | None):
        self._worker, self._transport, self.window, self._path = worker, transport, window, path
        self._slices: list[Slice] = []
        self._device = DeviceTimes(worker.ops) if worker.ops.records else None
        self._open = False
        self._iteration, self._began = -1, 0
        worker.hooks.before_iteration = self.iterate

    def align(self) -> None:
        """Count times from here on all ranks. Collective."""
        self._transport.barrier()
        self._zero = time.perf_counter_ns()

    def iterate(self, iteration: int) -> None:
        inside = iteration in self.window
        if inside and not self._open:
            self._begin()
        if not inside:
            self.end()
        self._iteration, self._began = iteration, time.perf_counter_ns()

    def _begin(self) -> None:
        self._open, hooks = True, self._worker.hooks
        hooks.perform, hooks.before_read, hooks.grad_ready = self._perform, self._before_read, self._grad_ready
        for name, reducer in self._worker.exchange.reducers.training.items():
            reducer.watch(partial(self._add_bucket, name, reducer))
        if self._device is not None:
            self._device.begin()

    def end(self) -> None:
        """End the window, and write rank 0's own slices, as the ranks may not meet any more."""
        if not self._open:
            return
        self._open = False
        self._worker.untrace()
        for reducer in self._worker.exchange.reducers.training.values():
            reducer.watch(None)
        for work in self._device.read() if self._device is not None else ():
            self._add(DEVICE, *work)
        if self._path is not None:
            with suppress(OSError):  # :meth:`meet` reports it, unless the run ends by an error of more weight
                write_trace(self._path, {self._transport.rank: self._slices})

    def write_all(self) -> str:
        """Write the slices of all ranks on rank 0; a note on the file. Collective."""
        self.end()
        every = self._transport.gather_json([each.as_json() for each in self._slices])
        try:
            if self._path is not None:
                write_trace(self._path, {rank: [Slice(*each) for each in slices] for rank, slices in enumerate(every)})
        except OSError as error:  # not worth a run
            return f"the trace could not be written to {self._path} ({error.strerror})"
        if any(every):
            return f"the trace is in {self._path}: open it at https://ui.perfetto.dev"
        return (
            f"nothing was traced: the run ended before iteration {self.window.start + 1}, the first that was asked for"
        )

    # ── the worker ────────────────────────────────────────────────────────────────────────────────────────────
    def _perform(self, instruction: object) -> None:
        self._pass = type(instruction).__name__.lower()
        began = self._since = time.perf_counter_ns()
        self._layer = ""
        self._mark()
        self._worker.run(instruction)
        now = time.perf_counter_ns()
        if isinstance(instruction, Forward):
            self._close_layer(now)
        else:
            self._mark(self._pass)
        self._add(LOOP, self._pass, began, now)
        if isinstance(instruction, Update):  # the last
            self._add(LOOP, f"iteration {self._iteration + 1}", self._began, now)

    def _before_read(self, span: Span) -> None:
        layer = _layer_of(span)
        if layer != self._layer:
            self._close_layer(time.perf_counter_ns())
            self._layer = layer
        self._worker.exchange.before_read(span)

    def _close_layer(self, now: int) -> None:
        if self._layer:
            self._mark("forward", self._layer)
            self._add(LOOP, f"forward {self._layer}", self._since, now)
        self._since = now

    def _grad_ready(self, span: Span) -> None:
        layer = _layer_of(span)
        if layer != self._layer:
            self._mark(self._pass, layer)
            self._add(LOOP, f"{self._pass} {layer}", self._since, time.perf_counter_ns())
            self._layer = layer
        self._worker.exchange.grad_ready(span)
        self._since = time.perf_counter_ns()

    def _mark(self, verb: str | None = None, layer: str | None = None) -> None:
        if self._device is not None:
            self._device.mark(verb, layer)

    def _add(self, track: str, name: str, start: int, stop: int, about: dict | None = None) -> None:
        if stop - start >= LEAST_NS:
            self._slices.append(Slice(track, name, start - self._zero, stop - self._zero, about or {}))

    # ── the exchange ──────────────────────────────────────────────────────────────────────────────────────────
    def _add_bucket(self, name: str, reducer: Reducer, verb: str, index: int, start_s: float, stop_s: float) -> None:
        """Add a bucket's time under way, or the worker's work or wait for it."""
        bucket, reduction = reducer.buckets[index], reducer.reductions[index]
        times = round(1e9 * start_s), round(1e9 * stop_s)
        if verb != "land":
            self._add(LOOP, f"{verb} {name} {index}", *times)
            return
        about = {"bytes": bucket.nbytes, "algorithm": reduction.algorithm, "sent": reduction.bytes_sent}
        about |= {"first": bucket.spans[0].name, "last": bucket.spans[-1].name}
        self._add(f"{name} {index}", f"{name} {index}", *times, about)


def _layer_of(span: Span) -> str:
    return span.name.rpartition(".")[0]
