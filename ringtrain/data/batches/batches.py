"""Batches in order, gathered ahead by a thread.

    thread    ── fill ──►  ready (at most DEPTH)    ── next() ──►  the caller's one batch (two after a peek)
       ▲                                                               │
       └──────────────────────────── free ◄── at the following next() ─┘

The thread reuses the slots: a batch is valid until the next ``next()``, or the one after that. Copying releases the
interpreter, so gathering runs beside the training of the previous batch.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.gather import Batch, Changes, Gather
from ringtrain.data.batches.order import Windows
from ringtrain.data.batches.sampler import EvenParts, Sampler
from ringtrain.data.split import Split

__all__ = ["Batch", "Batches", "evaluation_batches"]
DEPTH = 2


class Batches(Iterator[Batch]):
    """Iterate over the batches of ``units``, (iteration, part) each, from which a thread takes, and may wait in it. A
    part None has no examples.

    ``allocate``: allocate(shape, dtype) makes the arrays of the batches. ``valid``: calls of ``next()`` until a batch
    may be overwritten. ``next()`` raises an exception of the thread. Use as a context manager, or call :meth:`close`.
    """

    def __init__(
        self, gather: Gather, units: Iterable[tuple[int, int | None]], allocate: Callable = np.empty, valid: int = 1
    ):
        self._gather = gather
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        self._ready: queue.SimpleQueue = queue.SimpleQueue()
        # DEPTH waiting, the others with the caller.
        for _ in range(DEPTH + valid):
            self._free.put(gather.slot(allocate))
        self._valid = valid
        self._handed_out: deque = deque()  # oldest first
        self._peeked: tuple | None = None  # (slot, batch) that next() gives
        self._end: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(units,), name="batches", daemon=True)
        self._thread.start()

    # ── the thread ────────────────────────────────────────────────────────────────────────────────────────
    def _run(self, units: Iterable[tuple[int, int | None]]) -> None:
        try:
            for iteration, part in units:
                slot = self._free.get()
                if self._closing.is_set():
                    return
                self._ready.put((slot, self._gather.fill(slot, iteration, part)))
            self._ready.put((None, StopIteration()))
        except BaseException as error:  # any exception belongs to the caller
            self._ready.put((None, error))

    # ── the caller ────────────────────────────────────────────────────────────────────────────────────────
    def __next__(self) -> Batch:
        if self._closing.is_set():
            raise RuntimeError("these batches were closed: make new ones")
        if self._end is not None:
            raise self._end
        if len(self._handed_out) == self._valid:
            self._free.put(self._handed_out.popleft())
        slot, batch = self._peeked or self._ready.get()
        self._peeked = None
        if slot is None:
            self._end = batch
            raise self._end
        self._handed_out.append(slot)
        return batch

    def peek(self) -> Batch | None:
        """Return the batch that the next ``next()`` returns; None if it is not gathered yet, or at the end. It stays
        valid until the ``next()`` after that one."""
        if self._peeked is None and not self._ready.empty():
            self._peeked = self._ready.get()
        return self._peeked[1] if self._peeked and self._peeked[0] is not None else None

    def close(self) -> None:
        """Stop the thread and wait for it. A second call does nothing."""
        self._closing.set()
        self._free.put(None)
        self._thread.join()
        self._gather.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def evaluation_batches(
    split: Split, batch: int, rank: int | None = 0, size: int = 1, grain: int = 1, crop: tuple[int, int] | None = None
) -> Batches:
    """Return batches with each example once, in file order: its centre ``crop`` (height, width), never mirrored; whole
    if it is None."""
    sampler = Sampler(split.count, batch, shuffle=False, windows=Windows.of(split.count, split.row_bytes))
    changes = Changes(augment=None if crop is None else Augment(0, False, *crop, centre=True))
    gather = Gather(split, sampler, EvenParts(size, grain), changes)
    return Batches(gather, ((iteration, rank) for iteration in range(sampler.iterations_per_epoch)))
