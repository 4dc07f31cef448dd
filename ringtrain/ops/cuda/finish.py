"""What surrounds the products of layers: weights in the type of activations, biases' gradients, masks of max(·, 0)."""

from ringtrain.ops.cuda.device import Device

COLUMNS, LINES = 32, 8  # threads of a block
LEAST_ROWS, MOST_PARTS = 64, 256
MASKED_ROWS, MOST_BLOCKS = 1024, 60_000


class Finish:
    def __init__(self, device: Device):
        self._device = device

    def rounded(self, w):
        """Weights as products take them: in the type of activations. Kept until the next are asked for."""
        device = self._device
        if device.real == device.active:
            return w
        rounded = device.scratch("rounded weights", w.size, device.active)
        device.each(device.kernels("matrix", "round_weights"), w.size, w, rounded, w.size, per_thread=4)
        return rounded

    def back(self, y, dy, db, columns: int, relu: bool, accumulate: bool):
        """dy is made 0 where y is not positive, with ``relu``; db = sum of its rows, unless it is None."""
        device, rows = self._device, dy.size // columns
        if db is not None and not rows:
            if not accumulate:
                device.runtime.clear(db, device.stream)
            return
        if not rows or (db is None and not relu):
            return
        least, most = (MASKED_ROWS, MOST_BLOCKS) if db is None else (LEAST_ROWS, MOST_PARTS)
        each = max(least, -(-rows // most))
        count = -(-rows // each)
        sums = None if db is None else device.scratch("parts", count * columns, device.real)
        blocks = -(-columns // COLUMNS), count
        kernel = device.kernels("matrix", "mask_and_sum")
        kernel(blocks, (COLUMNS, LINES), device.stream, y, dy, sums, rows, columns, each, int(relu))
        if db is not None:
            add = int(accumulate)
            device.each(device.kernels("matrix", "sum_parts"), columns, sums, db, count, columns, add)
