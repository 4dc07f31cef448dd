"""Convolution on a GPU: the passes of a layer, each by the variant of :class:`~ringtrain.ops.cuda.choice.Choice`.

    columns     windows as a matrix in memory, a product      forward and dw, if 16-byte loads cannot read windows;
                                                              1 × 1, where the image is that matrix; large kernels
    implicit    gathers windows while it multiplies           all but kernels over 32, or groups · stride² over 65,535
    wgmma       the same by Hopper's own instructions         16 bits, whole 16 bytes of channels, one group
    cuDNN       where nvidia-cudnn-frontend is installed      passes for which cuDNN has an engine

A fixed choice takes the first of them. The mask of max(·, 0) and db come before, and are common to all. An image that
is not normalised yet is so as implicit products load it, and before all other variants; moments of the result are made
by implicit products and wgmma, and after all other variants: a trial takes as long as both."""

from functools import partial

from ringtrain.ops.cuda.channels import unfinish
from ringtrain.ops.cuda.choice import KernelVariant
from ringtrain.ops.cuda.convolution.columns import ColumnsConvolution
from ringtrain.ops.cuda.convolution.cudnn import Cudnn, is_installed
from ringtrain.ops.cuda.convolution.implicit import Implicit
from ringtrain.ops.cuda.convolution.plan import ConvolutionPlan, make_convolution_plan
from ringtrain.ops.cuda.convolution.wgmma import WgmmaConvolution
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import WIDE_BYTES, products_of, rounded
from ringtrain.ops.cuda.norm import measure, normalise
from ringtrain.ops.cuda.tiles import worth
from ringtrain.ops.cuda.wgmma import is_whole
from ringtrain.ops.cuda.wgmma import worth as worth_by_wgmma
from ringtrain.ops.normalised import Moments, Normalised

FORWARD, INPUT_BACK, WEIGHTS_BACK = "forward", "input_back", "weights_back"
RESULT = {FORWARD: 3, INPUT_BACK: 2, WEIGHTS_BACK: 2}  # which of a pass's arguments it writes


class CudaConvolution:
    """Convolution and its gradients."""

    def __init__(self, device: Device):
        self._device, self._library = device, Cudnn(device) if is_installed() else None

    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False, moments=None, ghost=0):
        plan = make_convolution_plan(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
        if not plan.pixels:
            return None
        arguments = x_NHWC, w_RSCK, b_K, y_NPQK, relu, moments, ghost
        slices = self._do(FORWARD, plan, arguments, key=(b_K is not None, relu, isinstance(x_NHWC, Normalised), ghost))
        return None if slices is None or moments is None else Moments(moments, *slices)

    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False, add=False
    ):
        plan = make_convolution_plan(x_NHWC.shape, w_RSCK.shape, y_NPQK.shape, geometry)
        unfinish(self._device, dy_NPQK, y_NPQK, db_K, relu, accumulate)
        if plan.pixels:
            self._back(plan, x_NHWC, w_RSCK, dy_NPQK, dw_RSCK, dx_NHWC, accumulate, add)
        else:
            self._empty_back(dw_RSCK, None if add else dx_NHWC, accumulate)

    def _back(self, plan, x, w, dy, dw, dx, accumulate, add):
        spare = lambda: (x, dy, self._spare(dw), False)  # noqa: E731
        self._do(WEIGHTS_BACK, plan, (x, dy, dw, accumulate), spare, key=(isinstance(x, Normalised),))
        if dx is not None:
            self._do(INPUT_BACK, plan, (w, dy, dx, add), (lambda: (w, dy, self._cleared(dx), True)) if add else None)

    def _spare(self, array):
        """Return an array for trials, because the given one may hold sums that are added to."""
        return self._device.scratch("trial", array.size, array.dtype)

    def _cleared(self, array):
        spare = self._spare(array).reshape(array.shape)
        self._device.runtime.clear(spare, self._device.stream)
        return spare

    def _empty_back(self, dw, dx, accumulate):
        """Handle the case of no output pixels; there may be input pixels, if a kernel is larger than its image."""
        for array in () if accumulate else (dw,):
            self._device.runtime.clear(array, self._device.stream)
        if dx is not None and dx.size:
            self._device.runtime.clear(dx, self._device.stream)

    def _do(self, what: str, plan: ConvolutionPlan, arguments, trial=None, key=()):
        """Run a pass by the chosen variant; return its result. ``trial()`` makes scratch outputs for timing where the
        real ones are added to."""
        device, adds = self._device, what == INPUT_BACK and arguments[-1]
        measures = what == FORWARD and arguments[-1] > 0
        variant = device.choice(
            device,
            (what, device.active.name, plan, adds, *key),
            lambda: self._variants(what, plan, arguments[0], measures),
            lambda variant: self._try(variant, what, plan, trial() if trial else arguments),
        )
        return variant.run(plan, *arguments)

    def _try(self, variant, what, plan, arguments):
        slices = variant.run(plan, *arguments)
        if what == FORWARD and arguments[-1] > 0 and slices is None:
            measure(self._device, arguments[RESULT[what]], arguments[-1])  # as it will have to be
        return arguments[RESULT[what]]

    def _variants(self, what, plan, x, measures) -> list[KernelVariant]:
        """``x``: the first argument of the pass, which may be an image to normalise. ``measures``: moments are wanted:
        then products of the image as a matrix come last."""
        if isinstance(x, Normalised):
            plain = self._variants(what, plan, x.x, measures)
            plain = [KernelVariant(f"normalised, {variant.name}", self._normalising(variant.run)) for variant in plain]
            reads = Implicit.able(plan) and Implicit(self._device).normalises(plan, x)
            return [*(self._implicit(what, plan) if reads else []), *plain]
        gathers = Implicit.able(plan)
        variants = self._by_columns(what, plan) if not gathers or self._suits_columns(what, plan) else []
        implicit = self._implicit(what, plan) if gathers else []
        variants = [*implicit, *variants] if measures else [*variants, *implicit]
        variants += self._wgmma(what, plan) if WgmmaConvolution.able(self._device, plan, direct=measures) else []
        if self._library is not None and self._library.able(plan):
            variants.append(KernelVariant("cuDNN", self._adding(what, getattr(self._library, what))))
        return variants

    def _normalising(self, run):
        """Return a pass on the image that is normalised before, into memory of its own."""

        def normalise_first(plan, x, *arguments):
            raw, statistics, relu = x
            y = self._device.scratch("normalised", raw.size, raw.dtype).reshape(raw.shape)
            normalise(self._device, raw, statistics, y, relu=relu)
            return run(plan, y, *arguments)

        return normalise_first

    def _adding(self, what, run):
        """Return a pass that adds its result to the gradient of the image where it has to, for one that cannot."""

        def add_after(plan, w, dy, dx, add=False):
            if not add:
                return run(plan, w, dy, dx)
            device, gradient = self._device, self._device.scratch("added", dx.size, dx.dtype).reshape(dx.shape)
            run(plan, w, dy, gradient)
            vector = WIDE_BYTES // dx.dtype.itemsize
            device.each(device.kernels("elementwise", "add"), dx.size, dx, gradient, dx, dx.size, 0, per_thread=vector)
            return None

        return add_after if what == INPUT_BACK else run

    def _suits_columns(self, what, plan) -> bool:
        """Whether a matrix of windows may be worth its memory beside the implicit product. Of a depthwise convolution
        it would be one product for each channel."""
        narrow = plan.group_channels * self._device.active.itemsize % WIDE_BYTES != 0
        depthwise = plan.groups == plan.channels > 1
        return not depthwise and (plan.direct or (narrow and what != INPUT_BACK))

    def _implicit(self, what, plan):
        device, (rows, columns) = self._device, self._shape(what, plan)
        fits = worth(rows, columns, device.active.itemsize)
        named = [("implicit", Implicit(device)), *((f"implicit {tile}", Implicit(device, tile)) for tile in fits)]
        return [KernelVariant(name, self._rounding(what, each)) for name, each in named]

    def _wgmma(self, what, plan):
        tiles = worth_by_wgmma(self._shape(what, plan)[1])
        return [
            KernelVariant(f"wgmma {tile}", self._rounding(what, WgmmaConvolution(self._device, tile))) for tile in tiles
        ]

    def _by_columns(self, what, plan):
        device, whole = self._device, is_whole(plan.features, plan.channels if plan.direct else 0)  # windows are padded
        products = products_of(device, device.kernels, *self._shape(what, plan), whole)
        named = [(f"columns, {each.name}", ColumnsConvolution(device, each.run)) for each in products]
        variants = [KernelVariant(name, self._rounding(what, each)) for name, each in named]
        return (
            variants if plan.direct else [KernelVariant(each.name, self._adding(what, each.run)) for each in variants]
        )

    def _shape(self, what, plan) -> tuple[int, int]:
        """Return the rows and columns of the product."""
        if what == WEIGHTS_BACK:
            return plan.depth, plan.group_features
        return (plan.pixels, plan.group_features) if what == FORWARD else (plan.pixels_in, plan.group_channels)

    def _rounding(self, what, each):
        """Return ``each``'s pass, with weights rounded as it takes them."""
        run = getattr(each, what)
        return run if what == WEIGHTS_BACK else partial(getattr(self, f"_rounded_{what}"), run)

    def _rounded_forward(self, run, plan, x, w, b, y, relu, moments, ghost):
        return run(plan, x, rounded(self._device, w), b, y, relu, moments, ghost)

    def _rounded_input_back(self, run, plan, w, dy, dx, add=False):
        return run(plan, rounded(self._device, w), dy, dx, add)
