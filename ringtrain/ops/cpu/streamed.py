"""Collectives of arrays that lie anywhere, through a window of shared memory, each as one compiled call:
``sources/streamed.cpp``."""

import ctypes
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from ringtrain.arrays import array_address
from ringtrain.ops.cpu.library import steps_of
from ringtrain.ops.cpu.mapped import SPINS, TYPES

# In the order of the source.
ALL_REDUCE, SLICED_ALL_REDUCE, REDUCE, REDUCE_SCATTER = "all-reduce", "sliced all-reduce", "reduce", "reduce-scatter"
BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL = "broadcast", "all-gather", "gather", "scatter", "all-to-all"
ADDING = (ALL_REDUCE, SLICED_ALL_REDUCE, REDUCE, REDUCE_SCATTER)
COLLECTIVES = (*ADDING, BROADCAST, ALL_GATHER, GATHER, SCATTER, ALL_TO_ALL)
IN_PIECES = (REDUCE_SCATTER, SCATTER, ALL_TO_ALL)  # a slot has a piece for each rank
OPERATIONS = ("sum", "mean", "max", "min")
COSTS = 9
LINE_BYTES = 128
MOST_STAGES = 3
HEADER_BYTES = (MOST_STAGES + 4) * LINE_BYTES  # of a rank's memory in the window: counters, its call. Its slots follow
MOST_SLOTS = 32
MOST_RANKS = 1024
YIELDS = 200  # of a wait on shared cores, in place of spins
# Where they are in a header, as int64: how many chunks are through each stage, the last of which is done; the call.
*COUNTERS, WORDS = (line * LINE_BYTES // 8 for line in range(MOST_STAGES + 1))
DONE = COUNTERS[-1]
AT, SOURCE, TARGET, COUNT, REFUSED = 19, 25, 26, 27, 28  # words of the job


class StreamedCall:
    """Collectives of one type and operation, as a call that goes on where the last one ended.

    collective:  one of :data:`COLLECTIVES`; of a sliced all-reduce each rank adds a slice of each chunk, of the other
                 each adds all
    dtype:       of those that add, one of :data:`ringtrain.ops.cpu.mapped.TYPES`; the others move bytes
    operation:   one of :data:`OPERATIONS`; mean is of floating-point numbers
    root:        local rank, of those that have one
    memory:      the ranks' memory in the window, uint8; this rank's is at ``local_rank``
    slots:       of each rank, at most :data:`MOST_SLOTS`, of ``slot_bytes`` bytes, a multiple of :data:`LINE_BYTES`
    chunk_bytes: of a row, a multiple of :data:`LINE_BYTES`; with the pieces for all ranks at most ``slot_bytes``
    learns:      whether it learns the faster way to write slots, and tries the other now and then; if not, stores are
                 plain
    call:        what all ranks ask for, in words
    costs:       what calls on arrays of about this size have taken, :data:`COSTS` numbers that begin as zeros
    processes:   numbers of the ranks' processes, which may read one another's memory: what is not added is copied once,
                 from where it lies, and no slots are used; None: through slots
    spins:       whether a wait spins first; if ranks share cores, it yields
    state:       its first element grows with each action; it is 0 before a call and after it
    test:        test() begins, or goes on, without waiting. Returns 1 if it is done, 0 if not, and -1 - r if
                 local rank r makes another call; with as many as there are ranks, if :attr:`refused`
    wait:        wait() does the same, and waits for some 10 µs each time that it can do nothing
    rest:        rest() does the same, and sleeps for at most a millisecond"""

    def __init__(
        self,
        collective: str,
        dtype: str,
        operation: str,
        root: int,
        memory: Sequence[np.ndarray],
        local_rank: int,
        slots: int,
        slot_bytes: int,
        chunk_bytes: int,
        learns: bool,
        call: str,
        costs: np.ndarray,
        processes: np.ndarray | None = None,
        spins: bool = True,
    ):
        words = np.frombuffer(call.encode()[:LINE_BYTES].ljust(LINE_BYTES, b"\0"), np.uint8)
        self._kept = memory, costs, words, processes  # the call knows only their addresses
        self._headers = [array[:HEADER_BYTES].view(np.int64) for array in memory]
        self._local_rank, self._slots = local_rank, slots
        self._stages = 3 if collective == SLICED_ALL_REDUCE or processes is not None else 2
        patience = (SPINS, 0) if spins else (0, YIELDS)
        numbers, itemsize = 0, 1
        if collective in ADDING:
            numbers, itemsize = TYPES.index(dtype), 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        number = int.from_bytes(blake2b(call.encode(), digest_size=8).digest(), "little", signed=True)
        asked = numbers, OPERATIONS.index(operation), learns, array_address(costs), number, array_address(words)
        chunks = COLLECTIVES.index(collective), root, chunk_bytes // itemsize, slots, slot_bytes
        head = [0, *patience, *asked, *chunks, len(memory), local_rank]
        job = [*head, *[0] * (REFUSED + 1 - len(head)), 0 if processes is None else array_address(processes)]
        job += map(array_address, memory)
        self.state = (ctypes.c_int64 * len(job))(*job)
        self.test, self.wait, self.rest = steps_of("streamed", self.state)

    def bind(self, source: int, target: int, count: int) -> None:
        """Set the arrays of the next call: addresses, which may be the same, and the number of elements, of a row where
        an array has one for each rank."""
        self.state[SOURCE], self.state[TARGET], self.state[COUNT] = source, target, count

    def behind(self) -> list[int]:
        """Return the local ranks that have not published what this rank needs next, or else not added it; if this rank
        has no slot, the ones that are not done with what is in one."""
        published, done = (self._headers[self._local_rank][counter] for counter in (COUNTERS[0], DONE))
        needs = [(counter, done + 1) for counter in COUNTERS[: self._stages - 1]]
        if done == published:
            needs = [(DONE, done + 1 - self._slots)]
        others = [(at, header) for at, header in enumerate(self._headers) if at != self._local_rank]
        late = ([at for at, header in others if header[counter] < needed] for counter, needed in needs)
        return next(filter(None, late), [])

    @property
    def refused(self) -> int:
        """What the kernel says (errno) where it does not read the memory of another process."""
        return self.state[REFUSED]

    @property
    def chunk(self) -> int:
        """The chunk that this rank needs next, counted from 1."""
        return self.state[AT + self._stages - 1] + 1

    def call_of(self, local_rank: int) -> str:
        """Return the call of a local rank, or the start of its words."""
        words = self._headers[local_rank][WORDS : WORDS + LINE_BYTES // 8]
        return words.tobytes().rstrip(b"\0").decode(errors="ignore")


def read_process(process: int, address: int, nbytes: int) -> bytes | None:
    """Return bytes of the memory of a process, or None if the kernel does not read it: process_vm_readv(2)."""
    copied = ctypes.create_string_buffer(nbytes)
    local, remote = (_Span(where, nbytes) for where in (ctypes.addressof(copied), address))
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    done = read(process, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) if read is not None else -1
    return copied.raw if done == nbytes else None


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))
