"""Softmax and its cross-entropy: ``sources/loss.cu``."""

from ringtrain.ops.cuda.device import Device

WARP, ROW_BLOCK = 32, 256
FEW = 4  # elements of a thread, at the least


class CudaLoss:
    """Softmax and its cross-entropy."""

    def __init__(self, device: Device):
        self._device = device

    def softmax(self, x_NK, y_NK):
        rows, classes = x_NK.shape
        if rows:
            self._rows("softmax", rows, classes, x_NK, y_NK, classes)

    def softmax_cross_entropy(self, x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1):
        rows, classes = x_NK.shape
        if not rows:
            return
        results = self._device.scratch("results of rows", (3, rows), "float64")
        given = x_NK, labels_N, dx_NK, results, rows, classes, scale, smoothing, ignore
        self._rows("cross_entropy", rows, classes, *given)
        kernel = self._device.kernels("loss", "add_totals")
        kernel(1, ROW_BLOCK, self._device.stream, results, totals_3, rows)

    def _rows(self, function, rows, classes, *arguments):
        threads = WARP
        while threads < ROW_BLOCK and threads * FEW < classes:
            threads *= 2
        self._device.kernels("loss", function)(rows, threads, self._device.stream, *arguments)
