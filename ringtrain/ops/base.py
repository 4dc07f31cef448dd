"""The operations that a device must offer: all arithmetic on arrays happens in them.

Shape letters, used as suffixes all through the package:

    N examples   H W height and width in   C channels in   R S kernel height and width
    P Q height and width out   K channels (features, classes) out   D features in   G ghost batches, groups
    L length of a sequence   V entries of an embedding

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
  ``active``; weights and their gradients (w, b, gamma, beta, dw, …), statistics (mean, variance) and
  the arrays of optimizers and exchanges are of ``dtype``. On a host the two are one.
"""

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import ModuleType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ringtrain.arrays import Array
from ringtrain.ops.geometry import ConvGeometry, PoolGeometry
from ringtrain.ops.normalised import Moments, Normalised, NormStatistics
from ringtrain.ops.precision import active_dtype
from ringtrain.ops.update import UpdateRange, UpdateRule

ACTIVATIONS = ("sigmoid", "tanh", "silu", "gelu", "gelu_tanh")  # of all operations; C++ takes the place
VALUE_LOSSES = ("mse", "mae", "huber", "bce")
# The kernel that prepares images of a type.
PREPARE = {"uint8": "prepare_images", "float32": "prepare_floats", "float64": "prepare_doubles"}
Value = TypeVar("Value")


def methods_of(interface: ABCMeta, modules: Iterable[ModuleType], as_method: Callable) -> dict[str, Any]:
    """Return the functions of modules that have the name of an abstract operation, as methods of a class. Raises
    TypeError for an operation that two modules have."""
    methods: dict[str, Any] = {}
    for module in modules:
        for name in interface.__abstractmethods__ & vars(module).keys():
            if name in methods:
                raise TypeError(f"{module.__name__} has {name}, as a module before it")
            methods[name] = as_method(vars(module)[name])
    return methods


class Mark(ABC):
    """A point in the order of operations."""

    @abstractmethod
    def done(self) -> bool:
        """Whether all operations before it are done."""

    @abstractmethod
    def wait(self) -> None:
        """Block until all operations before it are done."""

    @abstractmethod
    def seconds_since(self, earlier: "Mark") -> float:
        """Return the seconds between two marks that are ``timed`` and done, by the clock of the device."""


class Ops(ABC):
    """The arithmetic of one device.

    dtype:     the NumPy dtype of weights, gradients and statistics: float32, or float64 for checks
    precision: of :data:`ringtrain.ops.precision.PRECISIONS`
    active:    the NumPy dtype of activations and their gradients: ``dtype``, or the 16-bit type of the precision
    helpers:   kernels of a host whose threads share the work of a compiled call; None without any
    columns_at_once: elements of a matrix of windows that :meth:`columns` should be asked for at once
    fused:     whether normalisations and sums of gradients are parts of the operations beside them: then layers call
               :meth:`norm_statistics` and its like, and give convolutions what these take
    records:   whether a segment may be recorded: then few long ones are better than many short ones"""

    name: str
    helpers: Any = None
    fused = False
    columns_at_once = 1 << 18  # within the cache of a core
    records: bool

    def __init__(self, dtype: DTypeLike = "float32", precision: str = "float32"):
        self.dtype, self.precision = np.dtype(dtype), precision
        self.active = active_dtype(precision, self.dtype)

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def describe(self) -> str:
        """Return the device in a few words for people."""

    @abstractmethod
    def numerics(self) -> str:
        """Return the version of the kernels, and their processor. They decide the bits, with sizes and order."""

    def compile_stats(self) -> tuple[int, int]:
        """Return (kernels compiled anew, kernels loaded from the disk cache) in this process: of a device."""
        return 0, 0

    def notes(self) -> list[str]:
        """Return notes for the user about the computation so far."""
        return []

    @abstractmethod
    def threads(self, count: int) -> None:
        """Let operations use ``count`` threads."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
        """Return a new array, of ``self.dtype`` by default."""

    @abstractmethod
    def address(self, x: Array) -> int:
        """Return the address of the first element."""

    @abstractmethod
    def pinned(self, shape: int | Sequence[int], dtype: DTypeLike) -> np.ndarray:
        """Return an uninitialised NumPy array in memory that a device copies by itself."""

    @abstractmethod
    def upload(self, host: np.ndarray, out: Array) -> None:
        """Copy a NumPy array into ``out``, of the same shape; converts to its dtype. The host's array has been read on
        return, except one of :meth:`pinned`, or a slice of it, which must not change until a mark after this is done.
        """

    @abstractmethod
    def to_host(self, x: Array) -> np.ndarray:
        """Return a NumPy copy of ``x``; waits for the operations before."""

    @abstractmethod
    def download(self, x: Array, host: np.ndarray) -> None:
        """Copy ``x`` into a NumPy array of the same shape; waits for the operations before."""

    @abstractmethod
    def fetch(self, x: Array, host: np.ndarray) -> None:
        """Copy ``x`` into an array of :meth:`pinned`, of the same dtype, without waiting: it is complete when a mark
        after this is done."""

    @abstractmethod
    def fill(self, x: Array, value: float) -> None:
        """x = value"""

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
        x = self.empty(shape, dtype)
        self.fill(x, 0)
        return x

    def from_host(self, host: np.ndarray) -> Array:
        x = self.empty(host.shape, host.dtype)
        self.upload(host, x)
        return x

    @abstractmethod
    def put(self, *values: tuple[Array, int | float]) -> None:
        """Set arrays of one element of 8 bytes (int64, uint64, float64) to numbers, up to four, in the order of
        operations; nothing waits."""

    @abstractmethod
    def typed(self, x: Array, dtype: DTypeLike) -> Array:
        """Return the same bytes as a flat array of another type."""

    @abstractmethod
    def memory(self) -> tuple[int, int] | None:
        """Return (free, total) bytes of the device; None for a host, whose memory is shared by all processes. If an
        array does not fit, :meth:`empty` raises DeviceFullError."""

    # ── order ─────────────────────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all operations issued so far are done."""

    @abstractmethod
    def segment(self, key: Hashable, run: Callable[[], Value]) -> Value:
        """Return the value of ``run()``, or its value at an earlier call with this key. Its operations must be the
        same, on the same arrays, for the same key: a device may record them once and replay them without ``run``, which
        must have no other effects. Nothing in it is uploaded, read or allocated, except at the first call for a key."""

    @abstractmethod
    def mark(self, timed: bool = False) -> Mark:
        """Return a point after all operations issued so far. ``timed``: for :meth:`Mark.seconds_since`."""

    @abstractmethod
    def after(self, mark: Mark) -> None:
        """Make later operations wait for a mark, possibly of :meth:`beside`."""

    @abstractmethod
    def beside(self) -> Self:
        """Return operations of the same device, on the same arrays, in an order of their own: only marks order them
        relative to these. On a host: these."""

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
        may be a source. It is the step of an all-reduce on a slice of the memory of several ranks."""

    @abstractmethod
    def scale(self, x: Array, factor: float | Array) -> None:
        """x = factor · x; a factor that is an array is one float64, read when this is done."""

    @abstractmethod
    def relu(self, x: Array, y: Array) -> None:
        """y = max(x, 0); ``y`` may be ``x``. A NaN stays a NaN."""

    @abstractmethod
    def relu_back(self, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy where y > 0, else 0; ``dx`` may be ``dy``"""

    @abstractmethod
    def activation(self, kind: str, x_N, y_N) -> None:
        """y = f(x) of each element, of any shape; ``kind`` is one of :data:`ACTIVATIONS`: 1/(1 + e^-x), tanh(x),
        x/(1 + e^-x), x · Φ(x) with the standard normal distribution Φ, or this with its approximation by tanh. ``y``
        may be ``x``. Source: Hendrycks & Gimpel 2016, "Gaussian error linear units", sections 2 and 4"""

    @abstractmethod
    def activation_back(self, kind: str, x_N, y_N, dy_N, dx_N) -> None:
        """dx = dy · f'(x); ``dx`` may be ``dy``."""

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
    def conv2d(
        self, x_NHWC: Array | Normalised, w_RSCK, b_K, y_NPQK, geometry: ConvGeometry, relu=False,
        moments: Array | None = None, ghost: int = 0,
    ) -> Moments | None:  # fmt: skip
        """Cross-correlation, in groups: output group g sees input channels of group g alone. ``moments``: memory of
        :meth:`moment_parts`, for moments of y in each ghost batch of ``ghost`` examples; returns them if it has made
        them."""

    @abstractmethod
    def conv2d_back(
        self, x_NHWC: Array | Normalised, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False,
        accumulate=False, add=False,
    ):  # fmt: skip
        """Gradients of :meth:`conv2d`; dx of a normalised x is the gradient of the normalised array. ``add``: dx is
        added to."""

    def conv2d_variant(self, x_shape: Sequence[int], w_shape: Sequence[int], geometry: ConvGeometry) -> str:
        """Return the variant of :meth:`conv2d` and its gradients for arrays of these shapes, in a word for people;
        two if the gradient of x goes another way; nothing where there is one alone, or where it is known only after a
        trial."""
        return ""

    @abstractmethod
    def depthwise_line(self, x_NLC, w_SC, b_C, y_NPC, geometry: ConvGeometry, relu=False) -> None:
        """Cross-correlation along a line, of each channel with a kernel of its own."""

    @abstractmethod
    def depthwise_line_back(
        self, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
    ):
        """Gradients of :meth:`depthwise_line`."""

    @abstractmethod
    def columns(self, x, columns, geometry: ConvGeometry, group: int = 0) -> None:
        """The windows of x as the rows of a matrix (im2col), of the channels of ``group``; zeros where they reach past
        the edge. x is [N, ..., C] of 1 to 3 spatial axes, columns [windows, taps · C/groups], in the order of N, the
        axes of windows, axes of taps, C."""

    @abstractmethod
    def columns_back(self, columns, b_C, x, geometry: ConvGeometry, group: int = 0, relu=False) -> None:
        """x = b + the sum of the elements of columns that :meth:`columns` copies it to, added in an order that depends
        on the geometry alone: the gradient of :meth:`columns`, and a transposed convolution's last step. b may be None.
        Of ``group``, whose channels of x alone are written; b and relu are for groups = 1."""

    @abstractmethod
    def bias_back(self, y, dy, db_C, relu=False, accumulate=False) -> None:
        """Mask dy by y > 0 with ``relu``, in place; db = sum of dy over all axes but the last, where db is not None.
        ``y`` may be None without ``relu``."""

    @abstractmethod
    def upsample(self, x_NHWC, y_NPQC, bilinear=False) -> None:
        """Each pixel P/H times a side: its nearest one's, or by ``bilinear`` interpolation between centres of
        pixels, where the edge repeats. Q/W = P/H is a whole number. Source: PyTorch's interpolate, align_corners=False
        """

    @abstractmethod
    def upsample_back(self, dy_NPQC, dx_NHWC, bilinear=False) -> None:
        """Gradient of :meth:`upsample`."""

    @abstractmethod
    def max_pool(self, x_NHWC, y_NPQC, where_NPQC, geometry: PoolGeometry) -> None:
        """Maximum of each window, without padding; ``where`` (uint8) keeps the position of the maximum, row-major
        within the kernel, the first among equals. Kernels up to 15."""

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
        """Mean over H and W, or over any number of spatial axes."""

    @abstractmethod
    def global_avg_pool_back(self, dy_NC, dx_NHWC) -> None:
        """Gradient of :meth:`global_avg_pool`."""

    # Batch normalisation in training, in the steps of :mod:`ringtrain.ops.normalised`; where operations are ``fused``.
    @abstractmethod
    def moment_parts(self, shape: Sequence[int], ghost: int) -> int:
        """Return how many elements of ``dtype`` a convolution may need for moments of a result of this shape."""

    @abstractmethod
    def positive_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes in which :meth:`normalise` notes which elements of an array are above 0."""

    @abstractmethod
    def norm_statistics(self, x_NHWC, statistics: NormStatistics, moments: Moments | None = None) -> None:
        """Fill mean, var and scale of each ghost batch of x; the last one may be smaller. ``moments``: those that the
        convolution has left which made x. Source: Ioffe & Szegedy 2015; ghost batches: Hoffer et al. 2017. x may have
        any number of spatial axes."""

    @abstractmethod
    def normalise(
        self, x_NHWC, statistics: NormStatistics, y_NHWC, a_NHWC=None, positive: Array | None = None, relu=False
    ) -> None:
        """y = (x - mean) · scale + beta + a; ``a`` may be None. ``positive``: uint8, notes which elements of y are
        above 0."""

    @abstractmethod
    def normalise_back(
        self, x_NHWC, statistics: NormStatistics, dy_NHWC, dgamma_C, dbeta_C, mean_C, var_C, dx_NHWC, total: int,
        positive: Array | None = None, relu=False, accumulate=False,
    ) -> None:  # fmt: skip
        """Gradients of :meth:`normalise`. With ``relu``, dy counts where y is above 0: by ``positive``, then dy becomes
        0 elsewhere, which is the gradient of ``a``; without it y had no ``a``.

        mean_C, var_C: this rank's contribution to the batch's average statistics: sum over ghosts of
        n_g/total · mean_g, and the same of the *unbiased* variances, where n_g counts examples and ``total`` all
        of them. The running statistics move towards their sum over ranks."""

    @abstractmethod
    def batch_norm_fixed(
        self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps: float, relu=False, a_NHWC=None
    ) -> None:
        """Batch normalisation by given statistics: evaluation. ``a`` is added to y, before ``relu``."""

    @abstractmethod
    def batch_moments(self, x_NHWC, moments_2C) -> None:
        """moments = (mean, biased variance) of each channel, float64; 0 without examples. This and the next two
        operations make batch normalisation by statistics of several ranks' examples."""

    @abstractmethod
    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False) -> None:
        """sums = (sum of dy, sum of dy · (x - mean)) of each channel, float64. With ``relu`` dy is first made 0 where y
        is, in place."""

    @abstractmethod
    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count: int, dx_NHWC, eps: float) -> None:
        """dx = gamma · inv · (dy - sums[0]/count - (x - mean) · inv² · sums[1]/count), inv = 1/sqrt(var + eps), where
        the sums of :meth:`batch_norm_sums` have been added up over all ``count`` elements of a channel."""

    @abstractmethod
    def group_norm(self, x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps: float) -> None:
        """y = gamma · (x - mean) · inverse + beta, inverse = 1/sqrt(var + eps), with mean and (biased) variance of each
        example over all S pixels and the C/G channels of a group, in their order. With S = G = 1 it is the
        normalisation of a layer. Sources: Wu & He 2018; Ba et al. 2016"""

    @abstractmethod
    def group_norm_back(
        self, x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate=False
    ) -> None:
        """Gradients of :meth:`group_norm`."""

    @abstractmethod
    def embedding(self, x_NL, w_VD, y_NLD) -> None:
        """y = w[x]: x are the entries' whole numbers, in the type of activations. A number that is none of 0 … V - 1
        gives NaN."""

    @abstractmethod
    def embedding_back(self, x_NL, dy_NLD, dw_VD, accumulate=False) -> None:
        """dw[x] is the sum of its dy, in the order of the rows; a number that is no entry is passed over."""

    @abstractmethod
    def add_bias(self, x_ND, b_D, y_ND) -> None:
        """y = x + b of each row; ``y`` may be ``x``. Its gradient is :meth:`bias_back`."""

    @abstractmethod
    def attention(self, x_NLE, y_NLD, y_NHLL, causal: bool = False) -> None:
        """Scaled dot-product attention of H heads. x holds queries, keys and values, E = 3 D; of each, head h has the
        columns h · D/H to (h + 1) · D/H. y_NHLL = softmax(q · kᵀ / sqrt(D/H)) is kept for the gradient, y_NLD is the
        heads' y_NHLL · v beside one another. With ``causal`` a place sees itself and those before it. Source: Vaswani
        et al. 2017, section 3.2"""

    @abstractmethod
    def attention_back(self, x_NLE, y_NHLL, dy_NLD, dx_NLE) -> None:
        """Gradient of :meth:`attention`."""

    @abstractmethod
    def softmax(self, x_NK, y_NK) -> None:
        """Probabilities of each row."""

    @abstractmethod
    def softmax_cross_entropy(
        self, x_NK, labels_N, dx_NK, totals_3, scale: float, smoothing=0.0, ignore=-1, factor_1: Array | None = None
    ) -> None:
        """Adds (sum of losses, correct, valid) to the float64 ``totals``; dx = scale · d(sum of losses)/dx, or None if
        only the totals are needed. ``labels`` are int32; a row with the label ``ignore`` does not count, and a label
        that is no class makes the loss NaN. Smoothing s takes (1 - s) · onehot + s/K as the target (Szegedy et al.
        2016). The loss is float64 inside. ``factor_1``: a float64 that multiplies the scale, read when this is done."""

    @abstractmethod
    def value_loss(
        self, kind: str, x_N, labels_N, dx_N, totals_3, scale: float, delta: float = 1.0, factor_1: Array | None = None
    ) -> None:
        """Adds (sum of losses, correct, labelled elements) to the float64 ``totals``; dx = scale · d(sum of losses)/dx,
        or None if only the totals are needed; all of one size. Of an output x and its label y, with d = x - y, ``kind``
        of :data:`VALUE_LOSSES`:

            mse    d²
            mae    |d|
            huber  d²/2 up to |d| = delta, then delta · (|d| - delta/2) (Huber 1964)
            bce    log(1 + e^x) - x · y; correct where x > 0 as y > 1/2; a y outside 0..1 makes the loss NaN

        Labels are of ``dtype``, or int32, where -1 does not count. The loss is float64 inside; ``factor_1`` is as in
        :meth:`softmax_cross_entropy`."""

    @abstractmethod
    def prepare_images(self, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N) -> None:
        """Images (uint8, float32 or float64) to network input: y = (image - mean) · scale, where pixel (p, q) of y is
        pixel (top + p, left + q) of the image, mirrored in q where ``flip`` is 1, and 0 where that lies outside the
        image. top, left are int32 and may be negative; flip is uint8."""

    @abstractmethod
    def paste_boxes(self, x_NHWC, source_NHWC: Array | None, boxes_N4) -> None:
        """In the box of each example, int32 (top, left, height, width) within the image, x = source, or 0 without a
        source."""

    @abstractmethod
    def mix_totals(self, a_3: Array, b_3: Array, totals_3: Array, share: float) -> None:
        """Adds to the float64 ``totals`` of a mixed batch (share · loss of a + (1 - share) · loss of b, correct
        of the one with the larger share, valid of a)."""

    # ── the update of weights ─────────────────────────────────────────────────────────────────────────────
    # Arrays are flat, over the arena; ``numbers`` and ``loss_scale_3`` are float64, as in :mod:`ringtrain.ops.update`.
    @abstractmethod
    def gradient_squares(self, g: Array, pieces: Sequence[tuple[int, int]], squares_1: Array) -> None:
        """squares = sum of g² over the pieces (start, stop), in float64: not finite where an element is not."""

    @abstractmethod
    def begin_update(
        self, numbers: Array, squares_1: Array | None = None, limit: float | None = None,
        loss_scale_3: Array | None = None, dynamic: bool = False, totals_3: Array | None = None,
    ) -> None:  # fmt: skip
        """Begin an update: count it, and set what the calls of :meth:`update` multiply gradients by, and whether they
        do anything. Gradients are of a loss multiplied by the factor of ``loss_scale_3``, which is adapted
        (``dynamic``): where squares are not finite the update is left out. limit: gradients of a larger norm are
        scaled to it. totals_3: of a loss that is not finite no update is applied any more."""

    @abstractmethod
    def update_squares(
        self, rule: UpdateRule, ranges: Sequence[UpdateRange], w: Array, g: Array, slots: Sequence[Array], first: int,
        numbers: Array, squares_N2: Array,
    ) -> None:  # fmt: skip
        """Of a layerwise rule: turn the gradients of the ranges, in place, into directions, and add the sums of squares
        of weights and direction of each norm. ``slots``: the optimizer's state, from element ``first`` on."""

    @abstractmethod
    def update(
        self, rule: UpdateRule, ranges: Sequence[UpdateRange], w: Array, g: Array, slots: Sequence[Array], first: int,
        numbers: Array, squares_N2: Array | None = None,
    ) -> None:  # fmt: skip
        """Update the weights of the ranges, in their order, and their averages. ``squares_N2``: of a
        layerwise rule, of whole parameters. ``ranges`` must be the same object in each call: a device keeps a
        table of it. Gradients may be overwritten."""

    # ── 16 bits for the wire: x is float32; packed is float16, or uint16 for the bits of bfloat16 ────────────
    @abstractmethod
    def pack(self, x: Array, packed: Array) -> None:
        """packed = x, rounded to nearest, ties to even; numbers beyond the type's range become infinite, and NaN the
        type's quiet NaN. The same bits from every implementation."""

    @abstractmethod
    def unpack(self, packed: Array, x: Array, accumulate: bool = False) -> None:
        """x = packed; or x += packed, in float32"""

    # ── compressed gradients: pairs and levels are bytes (uint8), laid out by :mod:`ringtrain.ops.pairs` and
    #    :mod:`ringtrain.ops.levels`, and x and y are flat ─────────────────────────────────────────────────────
    @abstractmethod
    def take_largest(self, x: Array, pairs: Array, k: int, chunk: int = 0) -> None:
        """Move the k elements of largest magnitude of x, of fewer than 2^31 elements, to ``pairs``, in the order of
        their indices, and set them to 0 in x. Of equals the first are taken; NaN is larger than infinity. The same
        elements from every implementation. ``chunk``: of each so many elements k, and as large a share of the last, by
        :func:`ringtrain.ops.pairs.pair_count`."""

    @abstractmethod
    def add_pairs(self, pairs: Array, y: Array, k: int) -> None:
        """y[index] += value, for k pairs"""

    @abstractmethod
    def take_levels(self, x: Array, levels: Array, bits: int) -> None:
        """Move x, rounded to the nearest levels of ``bits`` bits, ties to even, to ``levels``; what is left stays in x.
        An infinity or a NaN spoils its block, in ``levels`` and in x. The same bits from every implementation."""

    @abstractmethod
    def add_levels(self, levels: Array, y: Array, bits: int) -> None:
        """y += the numbers that the levels are"""

    @abstractmethod
    def pack_bits(self, x: Array, packed: Array, width: int) -> None:
        """Write the lowest ``width`` bits, 0 to 31, of int32s one after another into bytes."""

    @abstractmethod
    def unpack_bits(self, packed: Array, x: Array, width: int, k: int) -> None:
        """x = the whole numbers of :meth:`pack_bits`, plus i · 2^width for the i-th k of them: of int32"""

    @abstractmethod
    def product(self, a, b, y, a_transposed=False, b_transposed=False, accumulate=False) -> None:
        """y = a · b of matrices, either of them transposed first; or y += a · b"""

    @abstractmethod
    def orthonormalise(self, x_MR: Array) -> None:
        """Replace the columns of x by orthonormal columns with the same span. A column that lies within the span of
        those before it, or is 0, is drawn anew, from its index alone: zeros become a random basis. R <= M. Modified
        Gram-Schmidt, twice, sums in float64. Source: Giraud et al. 2005, "twice is enough"."""

    # ── reductions to the host ────────────────────────────────────────────────────────────────────────────
    @abstractmethod
    def square_sum(self, x: Array) -> float:
        """Sum of squares, accumulated in float64."""

    @abstractmethod
    def nonfinite(self, x: Array) -> int:
        """How many elements are NaN or infinite."""
