"""Execution of a two-shot plan in memory that the ranks of a node share: wait for all, add and write, wait for all.

On a device, adding a chunk and writing it to all buffers is one operation on the memory of all ranks. A rank signals
its arrival when its own buffer is final, and its end when its device is done: so there are two more waits.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ringtrain.arrays import Array
from ringtrain.collectives import texts
from ringtrain.collectives.execution.fused_plan import ChunkOperation, Place, TwoShotPlan, addition_order, is_one_pass
from ringtrain.collectives.execution.node_reduction import NodeReduction
from ringtrain.collectives.execution.reduction import HOST, Combine, ReductionDevice
from ringtrain.collectives.schedule import bounds
from ringtrain.transport.base import Transport
from ringtrain.transport.shared_arena import SignalCounter

WORK_BYTES = 1 << 18  # of all views of a segment: the sum is then still in the cache when it is written to the others
LEAST_BYTES = 1 << 14  # of each view: below that, calls cost more than the bytes that they move
ONE_PASS_BYTES = 1 << 20  # of a chunk on all ranks: from here on a host's add_all is quicker than segments
AT_ONCE = 8  # most arrays for a device's add_all

Work = list[tuple[Callable[..., None], tuple]]  # functions with their arguments


class Mapped(NodeReduction):
    """One two-shot plan on one buffer in memory that the node shares. Collective over the node.

    views:         the buffer on every rank of the node, by place (:meth:`Transport.peer_views`)
    counter:       signal counter, used only here at the time
    combine:       combine(a, b, y): y = a op b
    device:        computes. For a buffer outside host memory it adds by its add_all, and ``combine`` is that addition
    segment_bytes: longest segment of a chunk, added and written at once on a host; None: as suits the caches
    inputs:        further input arrays, if the plan has any: the views of each, as of the buffer. They are overwritten
    """

    algorithm = transport = "mapped"
    _called = texts.SHARED

    def __init__(
        self,
        fused: TwoShotPlan,
        transport: Transport,
        views: Sequence[Array],
        counter: SignalCounter,
        combine: Combine,
        device: ReductionDevice = HOST,
        segment_bytes: int | None = None,
        inputs: Sequence[Sequence[Array]] = (),
    ):
        super().__init__(transport, counter, device)
        place = transport.neighbours.index(transport.rank)
        start, stop = spans(views[place].size, fused.chunks)[place]
        arrays, itemsize = [views, *inputs], views[place].dtype.itemsize
        chunk_bytes = sum(fused.inputs_of) * (stop - start) * itemsize
        one_pass = segment_bytes is None and adds_in_one_pass(fused, place, combine, device, chunk_bytes)
        if on_host(views) and not one_pass:
            longest = (segment_bytes or segment_bytes_for(sum(fused.inputs_of))) // itemsize
            self._work = [
                action
                for a, b in segments(start, stop, longest)
                for action in host_operations(fused.tasks[place], chunk_views(arrays, fused.chunks, a, b), combine)
            ]
        else:
            self._work = device_operations(device, fused, place, chunk_views(arrays, fused.chunks, start, stop))
        # The rank reads the others' contributions to its chunk, and writes the sum to their buffers.
        moved = sum(fused.inputs_of) - fused.inputs_of[place] + len(views) - 1
        self.bytes_sent = moved * (stop - start) * itemsize

    def _move(self) -> bool:
        run_operations(self._work)
        return True


def run_operations(work: Work) -> None:
    """Call the functions with their arguments."""
    for function, arguments in work:
        function(*arguments)


def on_host(views: Sequence[Array]) -> bool:
    """Whether the views lie in host memory."""
    return isinstance(views[0], np.ndarray)


def adds_in_one_pass(fused: TwoShotPlan, rank: int, combine: Combine, device: ReductionDevice, nbytes: int) -> bool:
    """Whether a host adds a chunk, of ``nbytes`` on all ranks together, quicker by one call that writes the sum to all
    buffers than by segments. The order of additions is the same.
    """
    added_by_device = combine == getattr(device, "add", None)
    return (
        fused.size > 1
        and added_by_device
        and nbytes >= ONE_PASS_BYTES
        and fused.chunks <= AT_ONCE
        and is_one_pass(fused, rank)
    )


def sum_into(device: ReductionDevice, sources: Sequence[Array], targets: Sequence[Array]) -> Work:
    """Return the sum of the sources into every target, as one device operation: as :func:`host_operations`."""
    return [(device.add_all, (sources, targets))] if sources[0].size and targets else []


def segment_bytes_for(ranks: int) -> int:
    """Return the segment length in bytes that suits the caches, for the sum of ``ranks`` arrays."""
    return max(WORK_BYTES // ranks, LEAST_BYTES)


def spans(count: int, chunks: int) -> list[tuple[int, int]]:
    """Return (start, stop) of every chunk of a buffer of ``count`` elements."""
    return list(pairwise(bounds(count, chunks)))


def segments(start: int, stop: int, longest: int) -> list[tuple[int, int]]:
    """Return the span in segments of at most ``longest`` elements."""
    return [(at, min(at + longest, stop)) for at in range(start, stop, longest)]


def chunk_views(arrays: Sequence[Sequence[Array]], chunks: int, start: int, stop: int) -> Callable[[Place], Array]:
    """Return a function from a place to the elements ``start:stop`` of its chunk. ``arrays[input][rank]``: all
    arrays.
    """
    return lambda place: arrays[place[1] // chunks][place[0]][start:stop]


def host_operations(tasks: Sequence[ChunkOperation], at: Callable[[Place], Array], combine: Combine) -> Work:
    """Return the tasks on a segment of a chunk, whose elements in a place are ``at(place)``."""
    made: Work = []
    for task in tasks:
        a, b = at(task.target), at(task.source)
        made.append((combine, (a, b, a)) if task.add else (np.copyto, (a, b)))
    return made


def device_operations(device: ReductionDevice, fused: TwoShotPlan, rank: int, at: Callable[[Place], Array]) -> Work:
    """Return the tasks on a device: one operation if the plan adds one contribution after another; otherwise one for
    each addition, of which the last writes the sum to all targets.
    """
    if is_one_pass(fused, rank):
        own = [at((source, rank)) for source in addition_order(fused, rank)]
        return sum_into(device, own, own)
    additions = [(at(task.target), at(task.source)) for task in fused.tasks[rank] if task.add]
    given = [at(task.target) for task in fused.tasks[rank] if not task.add]
    targets = [[target] for target, _ in additions[:-1]] + [[additions[-1][0], *given]]
    return [work for pair, into in zip(additions, targets, strict=True) for work in sum_into(device, pair, into)]
