"""Convolution on a GPU: the passes of a layer, each by the way that :class:`~ringtrain.ops.cuda.choice.Choice` chooses.

    columns     windows as a matrix in memory, a product      forward and dw, if 16-byte loads cannot read windows;
                                                              1 × 1, where the image is that matrix; large kernels
    implicit    gathers windows while it multiplies           all but kernels over 32, or groups · stride² over 65,535
    wgmma       the same by Hopper's own instructions         16 bits, whole 16 bytes of channels, one group
    cuDNN       where nvidia-cudnn-frontend is installed      passes for which cuDNN has an engine

A fixed choice takes the first of them. The mask of max(·, 0) and db come before, and are common to all.
"""

from functools import partial

from ringtrain.ops.cuda.channels import CudaChannels
from ringtrain.ops.cuda.choice import Way
from ringtrain.ops.cuda.convolution.columns import ColumnsConvolution
from ringtrain.ops.cuda.convolution.cudnn import Cudnn, is_installed
from ringtrain.ops.cuda.convolution.implicit import Implicit
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.convolution.wgmma import WgmmaConvolution
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import WIDE_BYTES, products_of
from ringtrain.ops.cuda.rounding import Rounding
from ringtrain.ops.cuda.tiles import worth
from ringtrain.ops.cuda.wgmma import is_whole
from ringtrain.ops.cuda.wgmma import worth as worth_by_wgmma

FORWARD, INPUT_BACK, WEIGHTS_BACK = "forward", "input_back", "weights_back"
RESULT = {FORWARD: 3, INPUT_BACK: 2, WEIGHTS_BACK: 2}  # which of a pass's arguments it writes


class CudaConvolution:
    """Convolution and its gradients. ``library``: passes by cuDNN; by default those of the installed library."""

    def __init__(self, device: Device, library: Cudnn | None = None):
        self._device, self._rounded, self._channels = device, Rounding(device), CudaChannels(device)
        self._library = library or (Cudnn(device) if is_installed() else None)

    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False):
        plan = make_convolution_plan(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
        if plan.pixels:
            self._do(FORWARD, plan, (x_NHWC, w_RSCK, b_K, y_NPQK, relu), key=(b_K is not None, relu))

    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False
    ):
        plan = make_convolution_plan(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
        self._channels.unfinish(dy_NPQK, y_NPQK, db_K, relu, accumulate)
        if plan.pixels:
            self._back(plan, x_NHWC, w_RSCK, dy_NPQK, dw_RSCK, dx_NHWC, accumulate)
        else:
            self._empty_back(dw_RSCK, dx_NHWC, accumulate)

    def _back(self, plan, x, w, dy, dw, dx, accumulate):
        self._do(WEIGHTS_BACK, plan, (x, dy, dw, accumulate), lambda: (x, dy, self._spare(dw), False))
        if dx is not None:
            self._do(INPUT_BACK, plan, (w, dy, dx))

    def _spare(self, dw):
        """Return an array for trials, because dw itself may hold sums that are added to."""
        return self._device.scratch("trial", dw.size, dw.dtype)

    def _empty_back(self, dw, dx, accumulate):
        """Handle the case of no output pixels; there may be input pixels, if a kernel is larger than its image."""
        for array in () if accumulate else (dw,):
            self._device.runtime.clear(array, self._device.stream)
        if dx is not None and dx.size:
            self._device.runtime.clear(dx, self._device.stream)

    def _do(self, what: str, plan: ConvolutionPlan, arguments, trial=None, key=()):
        """Do a pass. ``trial()`` returns other arguments for trials, if these are added to."""
        device = self._device
        way = device.choice(
            device,
            (what, device.active.name, plan, *key),
            lambda: self._ways(what, plan),
            lambda way: self._try(way, what, plan, trial() if trial else arguments),
            plan.flops,
        )
        way.run(plan, *arguments)

    def _try(self, way, what, plan, arguments):
        way.run(plan, *arguments)
        return arguments[RESULT[what]]

    def _ways(self, what, plan) -> list[Way]:
        gathers = Implicit.able(plan)
        ways = self._by_columns(what, plan) if not gathers or self._suits_columns(what, plan) else []
        ways += self._implicit(what, plan) if gathers else []
        ways += self._wgmma(what, plan) if WgmmaConvolution.able(self._device, plan) else []
        if self._library is not None and self._library.able(plan):
            ways.append(Way("cuDNN", getattr(self._library, what)))
        return ways

    def _suits_columns(self, what, plan) -> bool:
        """Whether a matrix of windows may be worth its memory beside the implicit product. Of a depthwise convolution
        it would be one product for each channel.
        """
        narrow = plan.group_channels * self._device.active.itemsize % WIDE_BYTES != 0
        depthwise = plan.groups == plan.channels > 1
        return not depthwise and (plan.direct or (narrow and what != INPUT_BACK))

    def _implicit(self, what, plan):
        device, (rows, columns) = self._device, self._shape(what, plan)
        fits = worth(rows, columns, device.active.itemsize)
        named = [("implicit", Implicit(device)), *((f"implicit {tile}", Implicit(device, tile)) for tile in fits)]
        return [Way(name, self._rounding(what, each)) for name, each in named]

    def _wgmma(self, what, plan):
        tiles = worth_by_wgmma(self._shape(what, plan)[1])
        return [Way(f"wgmma {tile}", self._rounding(what, WgmmaConvolution(self._device, tile))) for tile in tiles]

    def _by_columns(self, what, plan):
        device, whole = self._device, is_whole(plan.features, plan.channels if plan.direct else 0)  # windows are padded
        products = products_of(device, device.kernels, *self._shape(what, plan), whole)
        named = [(f"columns, {each.name}", ColumnsConvolution(device, each.run)) for each in products]
        return [Way(name, self._rounding(what, each)) for name, each in named]

    def _shape(self, what, plan) -> tuple[int, int]:
        """Return the rows and columns of the product."""
        if what == WEIGHTS_BACK:
            return plan.depth, plan.group_features
        return (plan.pixels, plan.group_features) if what == FORWARD else (plan.pixels_in, plan.group_channels)

    def _rounding(self, what, each):
        """Return ``each``'s pass, with weights rounded as it takes them."""
        run = getattr(each, what)
        return run if what == WEIGHTS_BACK else partial(getattr(self, f"_rounded_{what}"), run)

    def _rounded_forward(self, run, plan, x, w, b, y, relu):
        run(plan, x, self._rounded(w), b, y, relu)

    def _rounded_input_back(self, run, plan, w, dy, dx):
        run(plan, self._rounded(w), dy, dx)
