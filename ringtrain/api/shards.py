"""Sums of shards in one tree, with the same bits on any number of ranks: the additions of one rank, and the reduction
of its partial sums.
"""

from collections.abc import Sequence

import numpy as np

from ringtrain.collectives.algorithms.canonical import NAME, canonical
from ringtrain.collectives.algorithms.shards import Node, folds
from ringtrain.collectives.execution.execute import Execution, segment_for
from ringtrain.collectives.execution.mapped import make_mapped
from ringtrain.collectives.execution.node_program import canonical_program
from ringtrain.collectives.execution.reduction import HOST, Combine, Reduction
from ringtrain.collectives.shared_memory import MAPPED, unavailable
from ringtrain.transport.base import Transport


def add_shards(rows: np.ndarray, node: Node, shards: int, inputs: Sequence[np.ndarray], combine: Combine) -> None:
    """Add the rows, the shards ``own`` of ``shards``, as far as the tree allows it. The partial sums end in ``inputs``:
    the last in the first array, the others in those behind it.
    """
    last, slots = inputs[0], list(inputs[1:])
    for row, fold in zip(rows, folds(*node, shards)[0], strict=True):
        np.copyto(last, row)
        for slot in fold.adds:
            combine(slots[slot], last, slots[slot] if slot == fold.keep else last)
        if fold.keep is not None and fold.keep not in fold.adds:
            if fold.keep == len(slots):
                slots.append(np.empty_like(last))  # a sum that the other ranks never see
            np.copyto(slots[fold.keep], last)


def canonical_reduction(
    transport: Transport, shards: int, inputs: np.ndarray, op: str, dtype: str, combine: Combine, tag: int
) -> Reduction:
    """Return the all-reduce of the partial sums in the rows of ``inputs``: in memory that the node shares, if there is
    only one and it does, else over messages. The bits are the same. Collective.
    """
    first, size = inputs[0], transport.size
    counter = transport.signal_counter(tag)
    if size > 1 and unavailable(transport, first, MAPPED, [tag]) is None and counter is not None:
        views = [transport.peer_views(array) or [] for array in inputs]
        program = canonical_program(size, shards)
        reduction = make_mapped(program, transport, views[0], counter, op, dtype, HOST, views[1:])
        reduction.algorithm = NAME
        return reduction
    schedule = canonical(size, shards)
    further = list(inputs[1 : schedule.inputs_of(transport.rank)])
    return Execution(schedule, transport, first, combine, tag, segment_for(transport), inputs=further)
