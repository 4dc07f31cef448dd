"""The operations that a device must offer: all arithmetic on arrays happens in them.

Shape letters, used as suffixes all through the package:

    N examples   H W height and width in   C channels in   R S kernel height and width
    P Q height and width out   K channels (features, classes) out   D features in   G ghost batches

Images are NHWC; convolution weights are [R, S, C/groups, K], which is the [R·S·C/groups, K] matrix of the
product; linear weights are [D, K].

Rules that every implementation keeps:

* An *array* is opaque to callers, who may take ``.shape``, ``.dtype``, ``.size``, contiguous slices of the leading
  axis ``x[a:b]`` and ``x.reshape(shape)``, all of which are views, and nothing else.
* Results are written into arrays that the caller passes; an operation allocates nothing once it has run for a
  shape. Scratch belongs to the implementation, which keeps and reuses it.
* A ``_back`` operation takes the arrays of its forward operation, and ``d…`` arrays. It may overwrite ``dy``. A ``dx``
  (or ``db``) of None is not needed, or does not exist. ``dw``-like results are overwritten, or added to if
  ``accumulate`` is true; ``dx`` is overwritten.
* ``relu=True`` fuses max(·, 0) into the end of the operation; the ``_back`` operation then first masks ``dy`` by
  ``y > 0``.
* All operations are ordered as issued; a result may be read on the host only after ``synchronize`` (``to_host``
  and operations that return a Python number do so themselves).
* An array may have a leading axis of 0: a rank may have no example in a tail.
* Arrays are of one of two types. Activations and their gradients (x, y, dx, dy, logits, prepared images) are of
  ``active``; weights and their gradients (w, b, gamma, beta, dw, …), statistics (mean, variance, the scale of a
  response normalisation) and the arrays of optimizers and exchanges are of ``dtype``. On a host the two are one.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.ops.compression import CompressionOps
from ringtrain.ops.geometry import ConvGeometry, PoolGeometry
from ringtrain.ops.machine import MachineOps
from ringtrain.ops.precision import active_dtype


class Ops(MachineOps, CompressionOps):
    """The arithmetic of one device.

    dtype:     the NumPy dtype of weights, gradients and statistics: float32, or float64 for checks
    precision: of :data:`ringtrain.ops.precision.PRECISIONS`
    active:    the NumPy dtype of activations and their gradients: ``dtype``, or the 16-bit type of the precision
    helpers:   kernels of a host whose threads share the work of a compiled call; None without any
    records:   whether a segment may be recorded: then few long ones are better than many short ones
    """

    name: str
    helpers: Any = None
    records: bool

    def __init__(self, dtype: DTypeLike = "float32", precision: str = "float32"):
        self.dtype, self.precision = np.dtype(dtype), precision
        self.active = active_dtype(precision, self.dtype)

    # ── elementwise ───────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def copy(self, x: Array, y: Array) -> None:
        """y = x, of equal size"""

    @abstractmethod
    def add(self, a: Array, b: Array, y: Array, relu: bool = False) -> None:
        """y = a + b, of any equal shape; ``y`` may be ``a`` or ``b``. Also the addition of an all-reduce."""

    @abstractmethod
    def add_all(self, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        """Set every target to the sum of the sources, in their order; 1 to 8 of each, of one size and dtype. A target
        may be a source. It is the step of an all-reduce on a slice of the memory of several ranks.
        """

    @abstractmethod
    def scale(self, x: Array, factor: float) -> None:
        """x = factor · x"""

    @abstractmethod
    def relu(self, x: Array, y: Array) -> None:
        """y = max(x, 0); ``y`` may be ``x``. A NaN stays a NaN."""

    @abstractmethod
    def relu_back(self, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy where y > 0, else 0; ``dx`` may be ``dy``"""

    @abstractmethod
    def concat(self, xs: Sequence[Array], y: Array) -> None:
        """Join along the last axis: each x is [..., C_i], y is [..., sum C_i]."""

    @abstractmethod
    def concat_back(self, dy: Array, dxs: Sequence[Array]) -> None:
        """Cut ``dy`` along the last axis into ``dxs``, by their widths."""

    @abstractmethod
    def dropout(self, x_ND, y_ND, examples_N, key_1, layer: int, rate: float) -> None:
        """y = x · keep / (1 - rate), where keep is drawn with probability 1 - rate from a counter-based generator
        of (key, layer, example, element), absorbed in this order (:mod:`ringtrain.ops.keys`): the same for an example
        wherever it is computed, and again in the backward pass, which is this same operation on dy. ``key_1`` is an
        array of one uint64, so that a recorded call has a new one each time; ``layer`` is a key of 64 bits;
        ``examples_N`` is int64; x is [N, ...], read as [N, D]."""

    # ── layers ────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def linear(self, x_ND, w_DK, b_K, y_NK, relu=False) -> None:
        """y = x · w + b"""

    @abstractmethod
    def linear_back(self, x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False) -> None:
        """dw = xᵀ · dy, db = sum of dy over N, dx = dy · wᵀ"""

    @abstractmethod
    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry: ConvGeometry, relu=False) -> None:
        """Cross-correlation, in groups: output group g sees input channels of group g alone."""

    @abstractmethod
    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False
    ):
        """Gradients of :meth:`conv2d`."""

    def conv2d_way(self, x_shape: Sequence[int], w_shape: Sequence[int], geometry: ConvGeometry) -> str:
        """Return the way that :meth:`conv2d` and its gradients take for arrays of these shapes, in a word for people;
        two if the gradient of x goes another way; nothing where there is one alone, or where it is known only after a
        trial."""
        return ""

    @abstractmethod
    def max_pool(self, x_NHWC, y_NPQC, where_NPQC, geometry: PoolGeometry) -> None:
        """Maximum of each window, without padding; ``where`` (uint8) keeps the position of the maximum, row-major
        within the kernel, the first among equals. Kernels up to 15.
        """

    @abstractmethod
    def max_pool_back(self, dy_NPQC, where_NPQC, dx_NHWC, geometry) -> None:
        """Each dy is added to the element that was the maximum."""

    @abstractmethod
    def avg_pool(self, x_NHWC, y_NPQC, geometry: PoolGeometry) -> None:
        """Mean of each window. As in Caffe the divisor counts padding, but not what lies beyond it."""

    @abstractmethod
    def avg_pool_back(self, dy_NPQC, dx_NHWC, geometry) -> None:
        """Gradient of :meth:`avg_pool`."""

    @abstractmethod
    def global_avg_pool(self, x_NHWC, y_NC) -> None:
        """Mean over H and W."""

    @abstractmethod
    def global_avg_pool_back(self, dy_NC, dx_NHWC) -> None:
        """Gradient of :meth:`global_avg_pool`."""

    @abstractmethod
    def lrn_across(self, x_NHWC, y_NHWC, scale_NHWC, size: int, alpha: float, beta: float, k: float) -> None:
        """y = x · scale^-beta, scale = k + alpha/size · sum of x² over ``size`` neighbouring channels.
        Source: Krizhevsky et al. 2012, section 3.3, with Caffe's alpha/size."""

    @abstractmethod
    def lrn_across_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta) -> None:
        """Gradient of :meth:`lrn_across`."""

    @abstractmethod
    def lrn_within(self, x_NHWC, y_NHWC, scale_NHWC, size: int, alpha: float, beta: float) -> None:
        """y = x · scale^-beta, scale = 1 + alpha/size² · sum of x² over the size × size window around it, in the
        same channel, zeros outside. Source: Caffe's WITHIN_CHANNEL."""

    @abstractmethod
    def lrn_within_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta) -> None:
        """Gradient of :meth:`lrn_within`."""

    @abstractmethod
    def batch_norm(self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost: int, eps: float, relu=False) -> None:
        """y = gamma · (x - mean)/sqrt(var + eps) + beta, with mean and (biased) variance of each ghost batch of
        ``ghost`` consecutive examples, the last one possibly smaller; they are kept in mean_GC and var_GC,
        G = ceil(N / ghost). Source: Ioffe & Szegedy 2015; ghost batches: Hoffer et al. 2017. x may be [N, C] too."""

    @abstractmethod
    def batch_norm_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        """Gradients of :meth:`batch_norm`."""

    # The sum of a residual block in the batch normalisation before it. These are the operations one after another,
    # which a device may do in fewer passes over memory.
    def batch_norm_add(self, x_NHWC, gamma_C, beta_C, a_NHWC, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False) -> None:
        """y = batch_norm(x) + a"""
        self.batch_norm(x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps)
        self.add(y_NHWC, a_NHWC, y_NHWC, relu)

    def batch_norm_fixed_add(self, x_NHWC, gamma_C, beta_C, a_NHWC, mean_C, var_C, y_NHWC, eps, relu=False) -> None:
        """y = batch_norm_fixed(x) + a"""
        self.batch_norm_fixed(x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps)
        self.add(y_NHWC, a_NHWC, y_NHWC, relu)

    def batch_norm_add_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        """Gradients of :meth:`batch_norm_add`: that of ``a`` is what ``dy`` becomes."""
        if relu:
            self.relu_back(y_NHWC, dy_NHWC, dy_NHWC)
        given = x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC
        self.batch_norm_back(*given, ghost, eps, accumulate=accumulate)

    @abstractmethod
    def batch_norm_shares(self, x_NHWC, mean_GC, var_GC, ghost, total: int, mean_C, var_C, accumulate=False) -> None:
        """This rank's contribution to the batch's average statistics: mean_C = sum over ghosts of n_g/total · mean_g
        and var_C the same of the *unbiased* variances, where n_g counts examples and ``total`` those of all ranks. The
        running statistics move towards their sum over ranks.
        """

    @abstractmethod
    def batch_norm_fixed(self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps: float, relu=False) -> None:
        """Batch normalisation by given statistics: evaluation."""

    @abstractmethod
    def batch_moments(self, x_NHWC, moments_2C) -> None:
        """moments = (mean, biased variance) of each channel, float64; 0 without examples. This and the next two
        operations make batch normalisation by statistics of several ranks' examples.
        """

    @abstractmethod
    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False) -> None:
        """sums = (sum of dy, sum of dy · (x - mean)) of each channel, float64. With ``relu`` dy is first made 0 where y
        is, in place."""

    @abstractmethod
    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count: int, dx_NHWC, eps: float) -> None:
        """dx = gamma · inv · (dy - sums[0]/count - (x - mean) · inv² · sums[1]/count), inv = 1/sqrt(var + eps), where
        the sums of :meth:`batch_norm_sums` have been added up over all ``count`` elements of a channel."""

    @abstractmethod
    def softmax(self, x_NK, y_NK) -> None:
        """Probabilities of each row."""

    @abstractmethod
    def softmax_cross_entropy(self, x_NK, labels_N, dx_NK, totals_3, scale: float, smoothing=0.0, ignore=-1) -> None:
        """Adds (sum of losses, correct, valid) to the float64 ``totals``; dx = scale · d(sum of losses)/dx, or None if
        only the totals are needed. ``labels`` are int32; a row with the label ``ignore`` does not count, and a label
        that is no class makes the loss NaN. Smoothing s takes (1 - s) · onehot + s/K as the target (Szegedy et al.
        2016). The loss is float64 inside.
        """

    @abstractmethod
    def prepare_images(self, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N) -> None:
        """uint8 images to network input: y = (image - mean) · scale, where pixel (p, q) of y is pixel (top + p,
        left + q) of the image, mirrored in q where ``flip`` is 1, and 0 where that lies outside the image. top, left
        are int32 and may be negative; flip is uint8."""

    # ── optimizers, on flat spans ─────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def sgd(self, w: Array, g: Array, v: Array, lr: float, momentum: float, decay: float, nesterov: bool) -> None:
        """g' = g + decay·w; v = momentum·v + g'; w -= lr·(g' + momentum·v if nesterov else v)"""

    @abstractmethod
    def adamw(self, w, g, m, v, lr, beta1, beta2, eps, decay, step: int) -> None:
        """w -= lr·decay·w; m, v are the moving moments; w -= lr · m̂/(sqrt(v̂) + eps), bias-corrected by ``step`` >= 1.
        Source: Loshchilov & Hutter 2019."""

    @abstractmethod
    def adam_direction(self, w, g, m, v, beta1, beta2, eps, decay, step: int) -> None:
        """m, v are the moving moments; g = m̂/(sqrt(v̂) + eps) + decay·w, bias-corrected by ``step`` >= 1. Source: You et
        al. 2020, algorithm 2."""

    @abstractmethod
    def approach(self, w: Array, g: Array, rate: float) -> None:
        """w += rate · (g - w): running statistics."""

    # ── 16 bits for the wire: x is float32; packed is float16, or uint16 for the bits of bfloat16 ────────────
    @abstractmethod
    def pack(self, x: Array, packed: Array) -> None:
        """packed = x, rounded to nearest, ties to even; numbers beyond the type's range become infinite, and NaN the
        type's quiet NaN. The same bits from every implementation.
        """

    @abstractmethod
    def unpack(self, packed: Array, x: Array, accumulate: bool = False) -> None:
        """x = packed; or x += packed, in float32"""

    # ── reductions to the host ────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def square_sum(self, x: Array) -> float:
        """Sum of squares, accumulated in float64."""

    @abstractmethod
    def nonfinite(self, x: Array) -> int:
        """How many elements are NaN or infinite."""
