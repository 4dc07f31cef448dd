"""The update of weights, and sums of all elements: ``sources/update.cu``, ``numbers.cu`` and ``sums.cu``.

One launch updates all ranges, by a table of them on the device. The table cuts ranges into chunks of equal size, so
that blocks have equal work, and the order of a sum depends on sizes alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.ops.cuda.device import THREADS, Device
from ringtrain.ops.update import KINDS, UpdateRange, UpdateRule

CHUNK = 2048  # elements: two vectors of 16 bytes for each thread
MOST_PARTS = 512  # of a sum, on any device, so that its order is the same on all
PER_THREAD = 8  # elements of a sum
NO_NORM, NO_LIMIT = -1, -1.0


def chunks_of(pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """Cut pieces (start, stop) into chunks. Shapes: → int64 [chunks, 3]: first element, elements, place of the piece"""
    cut = [
        (at, min(CHUNK, stop - at), index)
        for index, (start, stop) in enumerate(pieces)
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


def gradient_squares(device: Device, g, pieces, squares_1):
    count, chunks = _table(device, pieces, _make_pieces)
    if not count:
        device.runtime.clear(squares_1, device.stream)
        return
    parts = device.scratch("parts of squares", MOST_PARTS, "float64")
    kernel = device.kernels.of(g.dtype)("numbers", "square_sum")
    arguments = g, chunks, count, parts, device.tickets(1), squares_1
    kernel(min(count, MOST_PARTS), THREADS, device.stream, *arguments)


def begin_update(device: Device, numbers, squares_1=None, limit=None, loss_scale_3=None, dynamic=False, totals_3=None):
    kernel = device.kernels("numbers", "begin_update")
    most = NO_LIMIT if limit is None else limit
    kernel(1, 1, device.stream, numbers, squares_1, most, loss_scale_3, dynamic, totals_3)


def update_squares(device: Device, rule, ranges, w, g, slots, first, numbers, squares_N2):
    table = _table(device, ranges, _make_table)
    if not table.count:
        return
    state, _ = _states(rule, slots)
    parts = device.scratch("parts of norms", 2 * table.count, "float64")
    arguments = w, g, *state, table.chunks, table.ranges, numbers, parts, first, table.count
    _launch(device, rule, "directions", table, w, *arguments, rule.momentum, rule.beta2, rule.eps)
    if table.norms:
        kernel = _kernel(device, rule, "add_norms", w)
        kernel(table.norms, THREADS, device.stream, parts, table.spans, numbers, squares_N2)


def update(device: Device, rule, ranges, w, g, slots, first, numbers, squares_N2=None):
    table = _table(device, ranges, _make_table)
    if not table.count:
        return
    state, average = _states(rule, slots)
    arguments = w, g, *state, average, squares_N2, table.chunks, table.ranges, numbers, first, table.count
    constants = rule.momentum, rule.beta2, rule.eps, rule.trust_coefficient
    _launch(device, rule, "update", table, w, *arguments, *constants, rule.ema or 0.0)


def _launch(device: Device, rule: UpdateRule, name: str, table: UpdateTable, w, *arguments) -> None:
    blocks = min(table.count, device.most_blocks)
    _kernel(device, rule, name, w)(blocks, THREADS, device.stream, *arguments)


def _kernel(device: Device, rule: UpdateRule, name: str, w):
    return device.kernels.of(w.dtype)("update", name, KIND=KINDS.index(rule.kind))


# ── numbers on the host ───────────────────────────────────────────────────────────────────────────────────
def square_sum(device: Device, x):
    return float(_sum(device, "square_parts", x))


def nonfinite(device: Device, x):
    return int(_sum(device, "nonfinite_parts", x))


def _sum(device: Device, name, x):
    if not x.size:
        return 0
    kernels = device.kernels.of(x.dtype)
    parts = min(MOST_PARTS, -(-x.size // (THREADS * PER_THREAD)))
    memory, host = device.scratch("sums", MOST_PARTS + 1, np.float64), device.pinned("total", 1, np.float64)
    kernels("sums", name)(parts, THREADS, device.stream, x, x.size, memory)
    kernels("sums", "sum_parts")(1, THREADS, device.stream, memory, parts, memory[MOST_PARTS:])
    device.runtime.download(memory[MOST_PARTS:], host, device.stream)
    device.stream.synchronize()
    return host[0]


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────
def _table(device: Device, key, make):
    """Return ``make(key)``, made at the first call with this object."""
    kept = device.tables.get(id(key))
    if kept is None:
        kept = device.tables[id(key)] = key, make(device, key)
    return kept[1]


def _make_pieces(device: Device, pieces: Sequence[tuple[int, int]]) -> tuple[int, Array]:
    chunks = np.ascontiguousarray(chunks_of(pieces)[:, :2])
    return len(chunks), _on_device(device, chunks)


def _make_table(device: Device, ranges: Sequence[UpdateRange]) -> UpdateTable:
    chunks = chunks_of([(each.start, each.stop) for each in ranges])
    norms = [NO_NORM if each.norm is None else each.norm for each in ranges]
    fields = [(each.lr, each.decay, each.rate, norm, each.frozen) for each, norm in zip(ranges, norms, strict=True)]
    starts = np.searchsorted(chunks[:, 2], np.arange(len(ranges) + 1))
    spans = [
        (starts[i], starts[i + 1] - starts[i], each.norm) for i, each in enumerate(ranges) if each.norm is not None
    ]
    arrays = chunks, np.array(fields).reshape(-1, 5), np.array(spans, np.int64).reshape(-1, 3)
    return UpdateTable(len(chunks), len(spans), *(_on_device(device, each) for each in arrays))


def _on_device(device: Device, host: np.ndarray) -> Array:
    array = device.runtime.empty(host.shape, host.dtype)
    device.runtime.upload(host, array, device.stream)
    return array


def _states(rule: UpdateRule, slots: Sequence[Array]) -> tuple[list[Array | None], Array | None]:
    """Return (the two arrays of state that a kernel takes, the average)."""
    state, average = (slots[:-1], slots[-1]) if rule.ema is not None else (slots, None)
    return [*state, None, None][:2], average
