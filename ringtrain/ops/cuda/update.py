"""The update of weights: ``sources/update.cu`` and ``sources/numbers.cu``.

One launch updates all ranges, by a table of them on the device. The table cuts ranges into chunks of equal size, so
that blocks have equal work, and the order of a sum depends on sizes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.ops.cuda.device import THREADS, Device
from ringtrain.ops.update import KINDS, UpdateRange, UpdateRule

CHUNK = 2048  # elements: two vectors of 16 bytes for each thread
MOST_PARTS = 512  # of a sum, on any device
NO_NORM, NO_LIMIT = -1, -1.0


def chunks_of(pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Cut pieces (start, stop) into chunks. Shapes: → int64 [chunks, 3]: first element, elements, place of the piece"""
    cut = [
        (at, min(CHUNK, stop - at), place)
        for place, (start, stop) in enumerate(pieces)
        for at in range(start, stop, CHUNK)
    ]
    return np.array(cut, np.int64).reshape(-1, 3)


@dataclass(frozen=True, slots=True)
class UpdateTable:
    """Ranges on the device. chunks, ranges: as in the source; spans: of each norm (first chunk, chunks, norm)"""

    count: int
    norms: int
    chunks: Array
    ranges: Array
    spans: Array


class Updates:
    """The update of weights. Tables are kept by the object that they are of."""

    def __init__(self, device: Device):
        self._device = device
        self._tables: dict[int, tuple[object, UpdateTable | tuple[int, Array]]] = {}

    def gradient_squares(self, g, pieces, squares_1):
        count, chunks = self._table(pieces, self._make_pieces)
        if not count:
            self._device.runtime.clear(squares_1, self._device.stream)
            return
        parts = self._device.scratch("parts of squares", MOST_PARTS, "float64")
        kernel = self._device.kernels.of(g.dtype)("numbers", "square_sum")
        given = g, chunks, count, parts, self._device.tickets(1), squares_1
        kernel(min(count, MOST_PARTS), THREADS, self._device.stream, *given)

    def begin_update(self, numbers, squares_1=None, limit=None, loss_scale_3=None, dynamic=False, totals_3=None):
        kernel = self._device.kernels("numbers", "begin_update")
        most = NO_LIMIT if limit is None else limit
        kernel(1, 1, self._device.stream, numbers, squares_1, most, loss_scale_3, dynamic, totals_3)

    def update_squares(self, rule, ranges, w, g, slots, first, numbers, squares_N2):
        table = self._table(ranges, self._make_table)
        if not table.count:
            return
        state, _ = _states(rule, slots)
        parts = self._device.scratch("parts of norms", 2 * table.count, "float64")
        given = w, g, *state, table.chunks, table.ranges, numbers, parts, first, table.count
        self._launch(rule, "directions", table, w, *given, rule.momentum, rule.beta2, rule.eps)
        if table.norms:
            kernel = self._kernel(rule, "add_norms", w)
            kernel(table.norms, THREADS, self._device.stream, parts, table.spans, numbers, squares_N2)

    def update(self, rule, ranges, w, g, slots, first, numbers, squares_N2=None):
        table = self._table(ranges, self._make_table)
        if not table.count:
            return
        state, average = _states(rule, slots)
        given = w, g, *state, average, squares_N2, table.chunks, table.ranges, numbers, first, table.count
        constants = rule.momentum, rule.beta2, rule.eps, rule.trust_coefficient, rule.trust_limit, rule.correction
        self._launch(rule, "update", table, w, *given, *constants, rule.ema or 0.0)

    def _launch(self, rule: UpdateRule, name: str, table: UpdateTable, w, *arguments) -> None:
        blocks = min(table.count, self._device.most_blocks)
        self._kernel(rule, name, w)(blocks, THREADS, self._device.stream, *arguments)

    def _kernel(self, rule: UpdateRule, name: str, w):
        return self._device.kernels.of(w.dtype)("update", name, KIND=KINDS.index(rule.kind))

    # ── tables ────────────────────────────────────────────────────────────────────────────────────────────────
    def _table(self, key, make):
        """Return ``make(key)``, made at the first call with this object."""
        kept = self._tables.get(id(key))
        if kept is None:
            kept = self._tables[id(key)] = key, make(key)
        return kept[1]

    def _make_pieces(self, pieces: Sequence[tuple[int, int]]) -> tuple[int, Array]:
        chunks = np.ascontiguousarray(chunks_of(pieces)[:, :2])
        return len(chunks), self._on_device(chunks)

    def _make_table(self, ranges: Sequence[UpdateRange]) -> UpdateTable:
        chunks = chunks_of([(each.start, each.stop) for each in ranges])
        fields = [_fields(each) for each in ranges]
        starts = np.searchsorted(chunks[:, 2], np.arange(len(ranges) + 1))
        spans = [
            (starts[i], starts[i + 1] - starts[i], each.norm) for i, each in enumerate(ranges) if each.norm is not None
        ]
        arrays = chunks, np.array(fields).reshape(-1, 5), np.array(spans, np.int64).reshape(-1, 3)
        return UpdateTable(len(chunks), len(spans), *map(self._on_device, arrays))

    def _on_device(self, host: np.ndarray) -> Array:
        array = self._device.runtime.empty(host.shape, host.dtype)
        self._device.runtime.upload(host, array, self._device.stream)
        return array


def _fields(each: UpdateRange) -> tuple[float, ...]:
    return each.lr, each.decay, each.rate, NO_NORM if each.norm is None else each.norm, each.frozen


def _states(rule: UpdateRule, slots: Sequence[Array]) -> tuple[list[Array | None], Array | None]:
    """Return (the two arrays of state that a kernel takes, the average)."""
    own, average = (slots[:-1], slots[-1]) if rule.ema is not None else (slots, None)
    return [*own, None, None][:2], average
