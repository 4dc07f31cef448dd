"""The all-reduce in memory that the ranks of a node share, as one compiled call: ``sources/mapped.cpp``."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from ringtrain.ops.cpu.library import CpuKernels, steps_of

# In the order of the source.
TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
ACTIONS = ("copy", "sum", "max", "min")
IDLE, COMING, LEAVING = range(3)
# How long a call waits awake: about 50 µs of spins; where ranks share cores, yields.
SPINS, YIELDS = 2000, 20


class MappedOperation(NamedTuple):
    """An operation on all elements of this rank's chunk. action: one of :data:`ACTIONS`; target, source: addresses."""

    action: str
    target: int
    source: int


class MappedCall:
    """The all-reduce of one buffer, as a call that goes on where the last one ended.

    dtype:      one of :data:`TYPES`
    count:      elements of this rank's chunk
    counters:   addresses of the ranks' counters; this rank's is at ``local_rank``
    operations: of this rank, in their order; they run when all ranks have come
    helpers:    kernels whose threads share the operations; None: the caller's thread alone
    spins:      whether a wait spins first; if ranks share cores, it yields
    state:      its first element is IDLE; COMING while it waits for ranks to come; LEAVING while for ranks to be done
    test:       test() begins, or goes on, without waiting. Returns whether it is done
    wait:       wait() does the same, and waits for some 10 µs
    rest:       rest() does the same, and sleeps for at most a millisecond"""

    def __init__(
        self,
        dtype: str,
        count: int,
        counters: Sequence[int],
        local_rank: int,
        operations: Sequence[MappedOperation],
        spins: bool = True,
        helpers: CpuKernels | None = None,
    ):
        self._helpers = helpers  # kept: the call has the address of their context
        patience = [SPINS, 0] if spins else [0, YIELDS]
        numbers = [TYPES.index(dtype), count, len(counters), local_rank, len(operations)]
        words = [IDLE, *patience, helpers.context if helpers else 0, *numbers, *counters]
        for each in operations:
            words += ACTIONS.index(each.action), each.target, each.source
        self.state = (ctypes.c_int64 * len(words))(*words)
        self.test, self.wait, self.rest = steps_of("mapped", self.state)
