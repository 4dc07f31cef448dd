"""Convolution by matrices of windows (im2col), some images at a time, and any product of matrices.

If windows are read element by element, as of images of 3 channels, it is faster to write them to memory once and then
multiply by 16-byte loads: lines of the matrix are padded by zeros to whole 16 bytes. A 1 × 1 convolution of stride 1
needs no windows: the image is the matrix. A dx by windows is for what the implicit product cannot do, and rare.
Groups are column ranges. Source: Chellapilla et al. 2006."""

from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import WIDE_BYTES, matrix, turned
from ringtrain.ops.cuda.windows import columns_back

MOST_BYTES = 512 << 20  # of windows at a time


class ColumnsConvolution:
    """The passes. ``product``: as in :mod:`ringtrain.ops.cuda.gemm`."""

    def __init__(self, device: Device, product):
        self._device, self._product = device, product
        self._wide = WIDE_BYTES // device.active.itemsize

    def forward(self, plan: ConvolutionPlan, x, w, b, y, relu, moments=None, ghost=0):
        """It makes no moments."""
        columns = plan.group_features
        for start, end, group in self._turns(plan):
            pixels = (end - start) * plan.p * plan.q
            windows = self._windows(plan, x[start:end], pixels, group)
            weights = matrix(w, plan.depth, columns, plan.features, group * columns)
            out = matrix(y[start:end], pixels, columns, plan.features, group * columns)
            bias = b if b is None else b[group * columns : (group + 1) * columns]
            self._product(windows, weights, out, bias, relu)

    def input_back(self, plan: ConvolutionPlan, w, dy, dx, add=False):
        """``add``: only where the image is the matrix."""
        columns = plan.group_features
        for start, end, group in self._turns(plan):
            pixels = (end - start) * plan.p * plan.q
            weights = matrix(w, plan.depth, columns, plan.features, group * columns)
            gradients = matrix(dy[start:end], pixels, columns, plan.features, group * columns)
            if plan.direct:
                image = self._image(plan, dx[start:end], pixels, group)
                self._product(gradients, turned(weights), image, accumulate=add)
            else:
                windows = matrix(self._memory(plan, pixels), pixels, plan.depth)
                self._product(gradients, turned(weights), windows)
                columns_back(self._device, windows.array, None, dx[start:end], plan.geometry, group)

    def weights_back(self, plan: ConvolutionPlan, x, dy, dw, accumulate):
        columns = plan.group_features
        if not plan.images and not accumulate:
            self._device.runtime.clear(dw, self._device.stream)
        for start, end, group in self._turns(plan):
            pixels = (end - start) * plan.p * plan.q
            windows = self._windows(plan, x[start:end], pixels, group)
            gradients = matrix(dy[start:end], pixels, columns, plan.features, group * columns)
            out = matrix(dw, plan.depth, columns, plan.features, group * columns)
            self._product(turned(windows), gradients, out, accumulate=accumulate or start > 0)

    def _turns(self, plan):
        """Yield (first image, end, group), such that the windows fit."""
        line = self._stride(plan) * self._device.active.itemsize
        each = plan.images if plan.direct else max(1, MOST_BYTES // (plan.p * plan.q * line))
        for start in range(0, plan.images, each):
            for group in range(plan.groups):
                yield start, min(start + each, plan.images), group

    def _stride(self, plan):
        return -(-plan.depth // self._wide) * self._wide

    def _memory(self, plan, pixels):
        return self._device.scratch("columns", pixels * self._stride(plan), self._device.active)

    def _image(self, plan, x, pixels, group):
        return matrix(x, pixels, plan.group_channels, plan.channels, group * plan.group_channels)

    def _windows(self, plan, x, pixels, group):
        if plan.direct:
            return self._image(plan, x, pixels, group)
        columns, stride = self._memory(plan, pixels), self._stride(plan)
        sizes = *plan.sizes[1:6], *plan.sizes[7:], group * plan.group_channels, plan.group_channels, stride
        kernel = self._device.kernels("columns", "gather")
        self._device.each(kernel, columns.size, x, columns, pixels, *sizes, per_thread=self._wide)
        return matrix(columns, pixels, plan.depth, stride)
