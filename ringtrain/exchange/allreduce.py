"""Synchronous data parallelism: gradients are summed over all ranks, and every rank makes the same update.
Exact.

Gradients travel in buckets, from the arena's end to its start, which is about the order in which backward
finishes them; a bucket starts when all its gradients are final, while backward goes on with the layers
before. All ranks start buckets in the same order, whatever the order in which their gradients become final.
"""

import time
from collections import deque

from ringtrain.collectives.execute import SEGMENT_BYTES
from ringtrain.collectives.reduction import Reduction
from ringtrain.errors import CheckpointError
from ringtrain.exchange.base import Exchange, Traffic
from ringtrain.exchange.buckets import make_buckets
from ringtrain.exchange.clip import clip, trained_runs
from ringtrain.exchange.guard import DEADLINE_S, Guard
from ringtrain.exchange.reductions import check_algorithm, prepare
from ringtrain.transport.base import Transport

BUCKET_BYTES = 4 << 20


class AllReduce(Exchange):
    """algorithm:     a name among the algorithms (:mod:`ringtrain.exchange.reductions`)
    bucket_bytes:  gradients are exchanged in buckets of about this size
    segment_bytes: where messages are cut, so that the addition of one overlaps the transfer of the next
    clip_norm:     the largest global norm of the summed gradient; None for no limit
    deadline_s:    how long to wait for others that make no progress, before StalledError
    guard:         watches the all-reduces; None for none
    """

    name = "allreduce"
    exact = True
    state_is_local = True

    def __init__(
        self,
        transport: Transport,
        ops,
        algorithm: str = "ring",
        bucket_bytes: int = BUCKET_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        clip_norm: float | None = None,
        deadline_s: float = DEADLINE_S,
        guard: Guard | None = None,
    ):
        self._transport, self._ops = transport, ops
        check_algorithm(algorithm)
        self._algorithm = algorithm
        self._bucket_bytes, self._segment_bytes = bucket_bytes, segment_bytes
        self._clip_norm, self._deadline_s, self._guard = clip_norm, deadline_s, guard
        self._bytes_sent, self._exposed_s = 0, 0.0
        self._step = 0

    def bind(self, arena, optimizer) -> None:
        self._arena, self._optimizer = arena, optimizer
        grads = arena.grads
        self._slots = {name: self._ops.zeros((grads.size,), grads.dtype) for name in optimizer.slots}
        self._buckets = make_buckets(arena.spans, grads.dtype.itemsize, self._bucket_bytes)
        self._reductions = [self._prepare(tag, bucket) for tag, bucket in enumerate(self._buckets)]
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
            guard=self._guard,
        )

    def rehearse(self) -> None:
        ops, nothing = self._ops, self._arena.grads[:0]
        ops.add(nothing, nothing, nothing)
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
