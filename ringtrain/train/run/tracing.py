"""``--trace``: what this rank does in a few iterations, moment by moment (:mod:`ringtrain.report.trace`).

For those iterations it puts itself around what the loop calls, and is told what the exchange has under way; before and
after them it is in nobody's way. Times are the host's, counted from a barrier; where a device computes, those of its
work besides, by marks.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ringtrain.config.record import TrainConfig
from ringtrain.errors import ConfigError
from ringtrain.parsing import whole_number
from ringtrain.report.trace import DEVICE, LEAST_NS, LOOP, Slice, write_trace
from ringtrain.train import texts
from ringtrain.train.step.instructions import Forward, Update
from ringtrain.train.step.worker import Worker
from ringtrain.transport.base import Transport

NOTHING_NS = 3000  # what lies between two marks with nothing in between, at most
WINDOW = (6, 8)  # iterations of a run, after those that learn how the rest goes


def window_of(config: TrainConfig, begun: int) -> tuple[int, int]:
    """(first, stop) of the iterations that are traced, from 0, in a run that begins at iteration ``begun``. Raises
    ConfigError."""
    if config.trace is not None and Path(config.trace).name in ("", ".."):
        raise ConfigError(texts.TRACE_TO_FOLDER(trace=config.trace))
    text = config.trace_iterations
    if text is None:
        return begun + WINDOW[0] - 1, begun + WINDOW[1]
    first, last = map(whole_number, text.partition(":")[::2])
    if first is None or last is None or not 1 <= first <= last:
        raise ConfigError(texts.TRACE_ITERATIONS(given=text))
    if first <= begun:
        raise ConfigError(texts.TRACE_TOO_EARLY(given=text, first=first, begun=begun))
    return first - 1, last


def path_of(config: TrainConfig, folder: Path) -> Path:
    """A bare name is in the run folder."""
    path = Path(config.trace)
    return folder / path if path.parent == Path() else path


class Tracer:
    """first, stop: the iterations, from 0
    path:        where rank 0 writes; None on the others
    clock:       nanoseconds
    """

    def __init__(
        self,
        worker: Worker,
        transport: Transport,
        first: int,
        stop: int,
        path: Path | None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ):
        self._worker, self._transport, self.path, self._clock = worker, transport, path, clock
        self._first, self.stop = first, stop
        self._slices: list[Slice] = []
        self._marks: list[tuple] = []  # (mark, what the device did before it, or None), in order
        self._open = False
        self._iteration, self._began = -1, 0
        worker.hooks.before_iteration = self.iterate

    def align(self) -> None:
        """From here all ranks count. Collective."""
        self._transport.barrier()
        self._zero = self._clock()

    def iterate(self, iteration: int) -> None:
        """The next iteration begins."""
        inside = self._first <= iteration < self.stop
        if inside and not self._open:
            self._begin()
        if not inside:
            self.end()
        self._iteration, self._began = iteration, self._clock()

    def _begin(self) -> None:
        worker, exchange, hooks = self._worker, self._worker.exchange, self._worker.hooks
        self._open = True
        hooks.perform, hooks.before_read, hooks.grad_ready = self._perform, self._need, self._ready
        self._flights = exchange.reducers.training
        for what, flight in self._flights.items():
            flight.watch(lambda *told, what=what, flight=flight: self._told(what, flight, *told))
        if worker.ops.records:
            worker.ops.synchronize()
            self._device_zero, self._mark_zero = self._clock(), worker.ops.mark(timed=True)

    def end(self) -> None:
        """No more iterations of the window: what rank 0 has is written, whatever becomes of the others."""
        if not self._open:
            return
        self._open = False
        self._worker.untrace()
        for flight in self._flights.values():
            flight.watch(None)
        self._read_marks()
        if self.path is not None:
            with suppress(OSError):  # whoever meets is told, and what ended the run says more
                write_trace(self.path, {self._transport.rank: self._slices})

    def meet(self) -> str:
        """Rank 0 writes what all have, and says where. Collective."""
        self.end()
        every = self._transport.gather_json([each.as_json() for each in self._slices])
        try:
            if self.path is not None:
                write_trace(self.path, {rank: [Slice(*each) for each in slices] for rank, slices in enumerate(every)})
        except OSError as error:  # it is not worth a run
            return texts.TRACE_UNWRITTEN(path=self.path, error=error.strerror)
        if any(every):
            return texts.TRACE_WRITTEN(path=self.path)
        return texts.NOTHING_TRACED(iteration=self._first + 1)

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────
    def _perform(self, instruction) -> None:
        self._pass = type(instruction).__name__.lower()
        self._layer, self._since = None, self._clock()
        began = self._since
        self._mark()
        self._worker.run(instruction)
        now = self._clock()
        if isinstance(instruction, Forward):
            self._close_layer(now)
        else:
            self._mark(self._pass)
        self._add(LOOP, self._pass, began, now)
        if isinstance(instruction, Update):  # the last
            self._add(LOOP, f"iteration {self._iteration + 1}", self._began, now)

    def _need(self, span) -> None:
        """Forward goes on with the layer of this span."""
        layer = _layer_of(span)
        if layer != self._layer:
            self._close_layer(self._clock())
            self._layer = layer
        self._worker.exchange.before_read(span)

    def _close_layer(self, now: int) -> None:
        if self._layer:
            self._mark("forward", self._layer)
            self._add(LOOP, f"forward {self._layer}", self._since, now)
        self._since = now

    def _ready(self, span) -> None:
        """Backward has come through the layer of this span."""
        layer = _layer_of(span)
        if layer != self._layer:
            self._mark(self._pass, layer)
            self._add(LOOP, f"{self._pass} {layer}", self._since, self._clock())
            self._layer = layer
        self._worker.exchange.grad_ready(span)
        self._since = self._clock()

    def _add(self, track: str, name: str, start: int, stop: int, about: dict | None = None) -> None:
        if stop - start >= LEAST_NS:
            self._slices.append(Slice(track, name, start - self._zero, stop - self._zero, about or {}))

    # ── the exchange ──────────────────────────────────────────────────────────────────────────────────────────
    def _told(self, what: str, flight, verb: str, place: int, start_s: float, stop_s: float) -> None:
        """By a flight, of its bucket: that it was under way, or what the loop did for it, or that it waited."""
        bucket, reduction = flight.buckets[place], flight.reductions[place]
        times = round(1e9 * start_s), round(1e9 * stop_s)
        if verb != "land":
            self._add(LOOP, f"{verb} {what} {place}", *times)
            return
        about = {"bytes": bucket.nbytes, "algorithm": reduction.algorithm, "sent": reduction.bytes_sent}
        about |= {"first": bucket.spans[0].name, "last": bucket.spans[-1].name}
        self._add(f"{what} {place}", f"{what} {place}", *times, about)

    # ── the device ────────────────────────────────────────────────────────────────────────────────────────────
    def _mark(self, verb: str | None = None, layer: str | None = None) -> None:
        """What the device was told since the last one is this."""
        if self._worker.ops.records:
            self._marks.append((self._worker.ops.mark(timed=True), verb, layer))

    def _read_marks(self) -> None:
        if not self._marks:
            return
        self._worker.ops.synchronize()
        moments = [self._device_zero + round(1e9 * mark.seconds_since(self._mark_zero)) for mark, *_ in self._marks]
        found = [
            TracedLayers(verb, layer, layer, start, stop)
            for (start, stop), (_, verb, layer) in zip(pairwise(moments), self._marks[1:], strict=True)
        ]
        for work in joined([work for work in found if work.verb]):
            self._add(DEVICE, work.name, work.start, work.stop)
        self._marks = []


@dataclass(slots=True)
class TracedLayers:
    """Of a device: of the layers from ``first`` to ``last``, or of none."""

    verb: str
    first: str | None
    last: str | None
    start: int
    stop: int

    @property
    def name(self) -> str:
        layers = dict.fromkeys(filter(None, (self.first, self.last)))
        return " ".join(filter(None, (self.verb, " to ".join(layers))))


def joined(found: Sequence[TracedLayers]) -> list[TracedLayers]:
    """Of layers that a device computes at a time all time is one's: that of the last in forward, which is asked for
    before it, and of the first in backward, which is told of after it. They become one."""
    kept: list[TracedLayers] = []
    for work in found:
        if kept and _together(kept[-1], work):
            kept[-1].last, kept[-1].stop = work.last, work.stop
        else:
            kept.append(work)
    return kept


def _together(before: TracedLayers, work: TracedLayers) -> bool:
    if not before.last or not work.first or before.verb != work.verb:
        return False
    idle = before if work.verb == "forward" else work
    return idle.stop - idle.start < NOTHING_NS


def _layer_of(span) -> str:
    return span.name.rpartition(".")[0]
