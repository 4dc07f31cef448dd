"""Prepared all-reduces, and a cache of them: preparing one takes about as long as running it many times."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Generic, TypeVar

import numpy as np

from ringtrain.allreduce import catalogue
from ringtrain.allreduce.catalogue import check_native
from ringtrain.allreduce.dtypes import MEAN
from ringtrain.allreduce.tuning_table import Table
from ringtrain.allreduce.wire_formats import NONE, host_wire
from ringtrain.api.request import Agreement, Request
from ringtrain.collectives import texts
from ringtrain.collectives.execution.reduction import Reduction
from ringtrain.collectives.execution.streamed import Streamed
from ringtrain.collectives.stream import STREAM, cannot_stream, make_streamed
from ringtrain.errors import UsageError, everywhere
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Transport
from ringtrain.transport.buffers import message_bounds

KEPT = 64


@dataclass(frozen=True, slots=True)
class PreparedReduction:
    """A prepared reduction, which works in place on ``span``, flat, between :meth:`load` and :meth:`store`. ``agree``:
    checks that all ranks start it, where nothing else does"""

    request: Request | None  # None: of another collective
    span: np.ndarray
    reduction: Reduction
    tag: int
    size: int
    agree: Callable[[], None] | None = None

    def load(self, source: np.ndarray) -> None:
        """Copy a contribution into the span: at once where it is the same memory."""
        request = self.request
        if request is not None and request.carrier is not request.numbers:
            source = request.numbers.shares(source, self.size)
        np.copyto(self.span.reshape(source.shape), source)

    def finish(self) -> np.ndarray:
        """Return the result, when the reduction is done: the span itself, or a copy of another type. Call it once."""
        request = self.request
        if request is not None and request.op == MEAN:
            if request.carrier is not request.numbers:
                return request.numbers.encode(self.span)
            request.numbers.divide(self.span, self.size)
        return self.span

    def store(self, target: np.ndarray) -> None:
        """Copy the result of :meth:`finish` into ``target``."""
        np.copyto(target, self.finish().reshape(target.shape))


class PlanBuilder:
    """Prepares reductions, each with the lowest free tag: the same on all ranks, since they prepare and release in the
    same order. Ranks that make different calls then wait in vain for one another's messages, and none takes one for
    another."""

    def __init__(self, transport: Transport, tuning: Table | None, guard: Guard | None, agreement: Agreement):
        self._transport, self._tuning, self._guard, self._agreement = transport, tuning, guard, agreement
        self._wire = cache(host_wire)
        self._tags: set[int] = set()
        self._agreed_to_stream = False  # ranks meet before the first stream: its window of shared memory is made then

    def prepare(self, request: Request, span: np.ndarray) -> PreparedReduction:
        """Prepare a reduction. Collective. Raises UsageError if the algorithm cannot do it."""
        if request.algorithm == catalogue.NATIVE:
            check_native(self._transport, request.carrier, request.reduction)

        def make(tag: int) -> Reduction:
            return catalogue.make_allreduce(
                self._transport,
                span,
                request.algorithm,
                request.carrier.combine(request.op),
                op=request.reduction,
                tag=tag,
                wire=self._wire(request.wire),
                dtype=request.carrier.name,
                tuning=self._tuning,
                guard=self._guard,
                content=request.of,
            )

        prepared = self.hold(span, make, request)
        if prepared.reduction.transport != catalogue.NATIVE:
            return prepared
        call = f"{request}, tag {prepared.tag}"
        return replace(prepared, agree=lambda: self._agreement.again(call))

    def hold(
        self, span: np.ndarray, make: Callable[[int], Reduction], request: Request | None = None
    ) -> PreparedReduction:
        """Prepare the reduction ``make(tag)`` on ``span``. Collective."""
        tag = next(tag for tag in count() if tag not in self._tags)
        reduction = make(tag)
        self._tags.add(tag)
        return PreparedReduction(request, span, reduction, tag, self._transport.size)

    def is_streamed(self, request: Request) -> bool:
        """Whether a stream runs a request: within a node, where its array is not in the communicator's memory.
        Collective. Raises UsageError, on all ranks, for a stream that is asked for by name and cannot run."""
        named, transport = request.algorithm == STREAM, self._transport
        anywhere = request.position is None and request.wire == NONE and math.prod(request.shape) > 0
        if transport.size == 1 or not anywhere or not (named or request.algorithm == catalogue.AUTO):
            return False
        if not self._agreed_to_stream:
            self._agreement.on(f"allreduce, {request}")
            self._agreed_to_stream = True
        why = cannot_stream(transport, np.empty(0), request.dtype)
        if why and named:
            raise everywhere(UsageError(texts.CANNOT_RUN.format(algorithm=request.algorithm, why=why)))
        return why is None

    def stream(self, request: Request) -> "StreamPlan":
        """Return the streamed all-reduce. Not collective: the window is there already."""
        numbers, count = request.numbers, math.prod(request.shape)
        streamed = make_streamed(
            self._transport, request.op, request.dtype, count, numbers.itemsize, content=request.of
        )
        watched: Reduction = streamed
        if self._guard is not None:
            watched = self._guard.watch(streamed, request.op, request.dtype, count, content=request.of)
        return StreamPlan(streamed, watched, numbers.storage)

    def release(self, prepared: PreparedReduction) -> None:
        prepared.reduction.free()
        self._tags.discard(prepared.tag)


@dataclass(frozen=True, slots=True)
class AllReducePlan:
    """An all-reduce in segments: (start, stop, the reduction of so many elements). ``parts``: these reductions, each
    once"""

    segments: Sequence[tuple[int, int, PreparedReduction]]
    parts: Sequence[PreparedReduction]

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank sends in a run, as far as they are known."""
        return sum(part.reduction.bytes_sent or 0 for *_, part in self.segments)

    def run(self, source: np.ndarray, target: np.ndarray, deadline_s: float) -> None:
        """Reduce ``source`` into ``target``, both flat, and possibly the same. Collective."""
        for start, stop, part in self.segments:
            if part.agree is not None:
                part.agree()
            part.load(source[start:stop])
            part.reduction.run(deadline_s)
            part.store(target[start:stop])


def make_allreduce_plan(prepare: Callable[[int], PreparedReduction], count: int, length: int) -> AllReducePlan:
    """Return the plan for ``count`` elements, in segments of ``length`` and a shorter last one. ``prepare(elements)``
    makes a reduction. Collective."""
    bounds = list(message_bounds(count, length)) if count else []
    parts = {elements: prepare(elements) for elements in dict.fromkeys(stop - start for start, stop in bounds)}
    return AllReducePlan([(start, stop, parts[stop - start]) for start, stop in bounds], list(parts.values()))


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A streamed all-reduce of one type and count. reduction: watched by the guard, if there is one; parts: none, since
    all calls share one window"""

    streamed: Streamed
    reduction: Reduction
    storage: np.dtype
    parts: Sequence[PreparedReduction] = ()

    @property
    def bytes_sent(self) -> int:
        return self.streamed.bytes_sent or 0

    def bind(self, host: np.ndarray, arrays: Callable[[], object]) -> Reduction:
        """Return the reduction of one array in place, to be run again and again while it is there.

        host:   its memory, contiguous and of the plan's type
        arrays: arrays() → what has the memory
        """
        self.streamed.bind(host, host, arrays)
        return self.reduction

    def run(self, source: np.ndarray, target: np.ndarray, deadline_s: float) -> None:
        """Reduce ``source`` into ``target``, as :meth:`AllReducePlan.run` does."""
        contribution = np.require(source, self.storage, ("C", "ALIGNED"))
        into = target if target.dtype.isnative and target.flags.aligned else np.empty(target.shape, self.storage)
        self.streamed.bind(contribution, into)
        self.reduction.run(deadline_s)
        self.streamed.release()
        if into is not target:
            np.copyto(target, into)


Key = TypeVar("Key", bound=Hashable)
Plan = TypeVar("Plan", bound=AllReducePlan | StreamPlan)


class PlanCache(Generic[Key, Plan]):
    """The :data:`KEPT` plans used last."""

    def __init__(self, release: Callable[[PreparedReduction], None]):
        self._release = release
        self._kept: OrderedDict[Key, Plan] = OrderedDict()

    def find(self, request: Key) -> Plan | None:
        """Return the plan for a request; None if it is missing."""
        plan = self._kept.get(request)
        if plan is not None:
            self._kept.move_to_end(request)
        return plan

    def get(self, request: Key, make: Callable[[], Plan]) -> Plan:
        """Return the plan for a request; if it is missing, make it and drop the plan not used for longest."""
        if request not in self._kept:
            while len(self._kept) >= KEPT:
                self._drop(self._kept.popitem(last=False)[1])
            self._kept[request] = make()
        self._kept.move_to_end(request)
        return self._kept[request]

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Drop the plans of all requests for which ``unwanted(request)`` is true."""
        for request in filter(unwanted, list(self._kept)):
            self._drop(self._kept.pop(request))

    def clear(self) -> None:
        while self._kept:
            self._drop(self._kept.popitem()[1])

    def _drop(self, plan: AllReducePlan | StreamPlan) -> None:
        for part in plan.parts:
            self._release(part)
