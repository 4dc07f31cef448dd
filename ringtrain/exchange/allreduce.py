"""Synchronous data parallelism: gradients are summed over all ranks, and every rank makes the same update.
Exact.

Gradients travel in buckets, from the arena's end to its start, which is about the order in which backward
finishes them; a bucket starts when all its gradients are final, while backward goes on with the layers
before. All ranks start buckets in the same order, whatever the order in which their gradients become final.

Over a wire of 16 bits they are rounded on their way, and so is the sum: replicas stay equal, but not to one rank alone.
"""

import time
from collections import deque

from ringtrain.collectives.reduction import Reduction
from ringtrain.errors import CheckpointError
from ringtrain.exchange.base import Exchange, Traffic
from ringtrain.exchange.buckets import make_buckets
from ringtrain.exchange.choice import say_bytes
from ringtrain.exchange.clip import clip, trained_runs
from ringtrain.exchange.guard import DEADLINE_S, Guard
from ringtrain.exchange.reductions import AUTO, check_algorithm, prepare
from ringtrain.exchange.shared import or_messages
from ringtrain.exchange.tuning import Table
from ringtrain.exchange.wires import NONE, make_wire, rehearse
from ringtrain.transport.base import Transport

BUCKET_BYTES = 4 << 20


class AllReduce(Exchange):
    """algorithm:     a name among the algorithms (:mod:`ringtrain.exchange.reductions`); ``auto`` chooses by bucket
    tuning:        what ``auto`` chooses by, on rank 0; None where nothing was measured
    bucket_bytes:  gradients are exchanged in buckets of about this size
    segment_bytes: where messages are cut, so that the addition of one overlaps the transfer of the next; None: as suits
                   the nodes
    clip_norm:     the largest global norm of the summed gradient; None for no limit
    deadline_s:    how long to wait for others that make no progress, before StalledError
    wire:          what gradients travel as: a name of :mod:`ringtrain.exchange.wires`
    guard:         watches the all-reduces; None for none
    """

    name = "allreduce"
    state_is_local = True

    def __init__(
        self,
        transport: Transport,
        ops,
        algorithm: str = "ring",
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int | None = None,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        wire: str = NONE,
        tuning: Table | None = None,
        guard: Guard | None = None,
    ):
        self._transport, self._ops = transport, ops
        self._algorithm, self._tuning, self._wire = algorithm, tuning, make_wire(wire, ops)
        self.exact = self._wire is None
        check_algorithm(algorithm, not self.exact)
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s, self._guard = clip_norm, deadline_s, guard
        self._bytes_sent, self._exposed_s = 0, 0.0
        self._step = 0

    def bind(self, arena, optimizer) -> None:
        self._arena, self._optimizer = arena, optimizer
        grads = arena.grads
        self._slots = {name: self._ops.zeros((grads.size,), grads.dtype) for name in optimizer.slots}
        self._buckets = make_buckets(arena.spans, grads.dtype.itemsize, self._bucket_bytes)
        tags = range(len(self._buckets))
        self._algorithm, note = or_messages(self._transport, grads, self._algorithm, tags)
        self._reductions = [self._prepare(tag, bucket) for tag, bucket in enumerate(self._buckets)]
        self.notes = [note] if note else self._choices()
        self._home = {span.name: tag for tag, bucket in enumerate(self._buckets) for span in bucket.spans}
        self._trained = trained_runs(arena.spans)
        self._flying: deque[Reduction] = deque()
        self._begin_iteration()

    def _prepare(self, tag: int, bucket) -> Reduction:
        return prepare(
            self._transport,
            self._arena.grads[bucket.start : bucket.stop],
            self._algorithm,
            self._ops.add,
            tag=tag,
            segment_bytes=self._segment_bytes,
            synchronize=self._ops.synchronize,
            wire=self._wire,
            tuning=self._tuning,
            guard=self._guard,
        )

    def _choices(self) -> list[str]:
        """What ``auto`` gave to which buckets: a line for each algorithm, with the reason at the largest size."""
        if self._algorithm != AUTO or self._transport.size == 1:
            return []
        given: dict[str, dict[int, str]] = {}
        itemsize = self._arena.grads.dtype.itemsize
        for bucket, reduction in zip(self._buckets, self._reductions, strict=True):
            name = reduction.algorithm.partition(":")[2]
            given.setdefault(name, {})[(bucket.stop - bucket.start) * itemsize] = reduction.why
        return [f"{AUTO}: {name} for {_sizes(reasons)}" for name, reasons in given.items()]

    def rehearse(self) -> None:
        ops, nothing = self._ops, self._arena.grads[:0]
        ops.add(nothing, nothing, nothing)
        if self._wire is not None:
            rehearse(self._wire, ops)
        if self._clip_norm is not None:
            ops.square_sum(nothing)
            ops.scale(nothing, 1.0)
        for run in self._optimizer.runs:
            middle = (run.start + run.stop) // 2  # inside of the run: the part of it that is updated is empty
            self._update(middle, middle, lr=0.0, step=1)

    def _begin_iteration(self) -> None:
        self._started = 0  # buckets; they start in order
        self._missing = [len(bucket.spans) for bucket in self._buckets]

    def before(self, iteration: int) -> None:
        if self._guard is not None:
            self._guard.iterate(iteration + 1)

    def ready(self, span) -> None:
        began = time.perf_counter()
        self._missing[self._home[span.name]] -= 1
        while self._started < len(self._buckets) and not self._missing[self._started]:
            self._start_next()
        for reduction in self._flying:
            reduction.test()
        self._exposed_s += time.perf_counter() - began

    def _start_next(self) -> None:
        reduction = self._reductions[self._started]
        self._started += 1
        self._bytes_sent += reduction.bytes_sent or 0
        reduction.start()
        self._flying.append(reduction)

    def finish(self, iteration: int, lr: float) -> None:
        """Gradients are final, announced or not. Buckets are updated as they arrive; all at once where the
        norm of the whole decides."""
        self._step += 1
        while self._started < len(self._buckets):
            self._start_next()
        for bucket in self._buckets:
            self._arrive()
            if self._clip_norm is None:
                self._update(bucket.start, bucket.stop, lr, self._step)
        if self._clip_norm is not None:
            clip(self._ops, self._arena.grads, self._trained, self._clip_norm)
            self._update(0, self._arena.grads.size, lr, self._step)
        self._begin_iteration()

    def _arrive(self) -> None:
        """Wait for the oldest bucket in flight, and let the others go on meanwhile."""
        began = time.perf_counter()
        oldest = self._flying.popleft()
        for reduction in self._flying:
            reduction.test()
        oldest.wait(self._deadline_s)
        self._exposed_s += time.perf_counter() - began

    def _update(self, start: int, stop: int, lr: float, step: int) -> None:
        arena = self._arena
        self._optimizer.apply(self._ops, arena.weights, arena.grads, self._slots, lr, step, start, stop)

    def settle(self) -> None:
        """Nothing to do: every rank has made every update."""

    def state(self) -> dict:
        return {"step": self._step, **{name: self._ops.to_host(slot) for name, slot in self._slots.items()}}

    def restore(self, state: dict) -> None:
        """Raises CheckpointError where the state is another optimizer's, or of another arena."""
        names = {"step", *self._slots}
        if set(state) != names:
            raise CheckpointError(
                f"the checkpoint's optimizer keeps {', '.join(sorted(state))}, this run's keeps "
                f"{', '.join(sorted(names))}: resume with the optimizer that wrote it"
            )
        for name, slot in self._slots.items():
            if state[name].shape != slot.shape:
                raise CheckpointError(
                    f"the checkpoint's {name!r} has {state[name].size} elements, this model's has {slot.size}: "
                    f"resume with the model that wrote it"
                )
        self._step = int(state["step"])
        for name, slot in self._slots.items():
            self._ops.upload(state[name], slot)

    def traffic(self) -> Traffic:
        return Traffic(self._bytes_sent, self._exposed_s)

    def close(self) -> None:
        self._reductions, self._flying = [], deque()


def _sizes(reasons: dict[int, str]) -> str:
    """ "1.5 MiB, 4 MiB (measured 1.2 ms; mpi 1.5 ms)" """
    sizes = sorted(reasons)
    named = ", ".join(map(say_bytes, sizes)) if len(sizes) < 4 else f"{say_bytes(sizes[0])} to {say_bytes(sizes[-1])}"
    at = f"at {say_bytes(sizes[-1])}: " if len(sizes) > 1 else ""
    return f"{named} ({at}{reasons[sizes[-1]]})"
