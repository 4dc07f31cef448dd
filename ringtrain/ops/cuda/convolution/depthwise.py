"""Convolution in which each output feature sees one channel: with nothing to share, each result by one thread."""

from ringtrain.ops.cuda.convolution.plan import Plan
from ringtrain.ops.cuda.device import Device

COLUMNS, LINES = 32, 8  # threads of a block
LEAST_PIXELS, MOST_PARTS = 128, 64


class Depthwise:
    """Weights are read as they are, of ``device.real``."""

    def __init__(self, device: Device):
        self._device = device

    @staticmethod
    def able(plan: Plan) -> bool:
        return plan.groups == plan.channels > 1

    def forward(self, plan: Plan, x, w, b, y, relu):
        kernel = self._device.kernels("depthwise", "depthwise_forward")
        self._device.each(kernel, y.size, x, w, b, y, *plan.sizes, int(relu))

    def input_back(self, plan: Plan, w, dy, dx):
        kernel = self._device.kernels("depthwise", "depthwise_input_back")
        self._device.each(kernel, dx.size, dy, w, dx, *plan.sizes)

    def weights_back(self, plan: Plan, x, dy, dw, accumulate):
        device = self._device
        each = max(LEAST_PIXELS, -(-plan.pixels // MOST_PARTS))
        parts = max(1, -(-plan.pixels // each))
        sums = device.scratch("parts", parts * dw.size, device.real)
        blocks = -(-plan.features // COLUMNS), parts, plan.kernel**2
        kernel = device.kernels("depthwise", "depthwise_weights_back")
        kernel(blocks, (COLUMNS, LINES), device.stream, x, dy, sums, *plan.sizes, each)
        kernel = device.kernels("matrix", "sum_parts")
        device.each(kernel, dw.size, sums, dw, parts, dw.size, int(accumulate))
