"""The operations on the CPU, by the compiled kernels of ``sources``. One thread by default.

An object keeps workspaces, so it serves one thread of the program at a time."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ringtrain.humanize import plural
from ringtrain.ops import keys
from ringtrain.ops.base import ACTIVATIONS, PREPARE, VALUE_LOSSES
from ringtrain.ops.cpu.conv import algorithm, choose_kernels, line_sizes
from ringtrain.ops.cpu.library import open_kernels, threads_wanted
from ringtrain.ops.elementary import power
from ringtrain.ops.geometry import window_sizes
from ringtrain.ops.host import HostOps, host_number
from ringtrain.ops.levels import cut_levels
from ringtrain.ops.pairs import cut_pairs, pair_count

WORTH_THREADS = 1 << 15  # elements of an addition
ALIGNMENT = 64
# Operations that are one call of the kernel of their name: its arguments, for those of the operation.
KERNEL_ARGUMENTS: dict[str, Callable[..., tuple]] = {
    "scale": lambda x, factor: (x, host_number(factor), x.size),
    "relu": lambda x, y: (x, y, y.size),
    "relu_back": lambda y, dy, dx: (y, dy, dx, y.size),
    "activation": lambda kind, x_N, y_N: (x_N, y_N, y_N.size, ACTIVATIONS.index(kind)),
    "activation_back": lambda kind, x_N, y_N, dy_N, dx_N: (x_N, y_N, dy_N, dx_N, y_N.size, ACTIVATIONS.index(kind)),
    "linear": lambda x_ND, w_DK, b_K, y_NK, relu=False: (x_ND, w_DK, b_K, y_NK, *x_ND.shape, w_DK.shape[1], relu),
    "linear_back": lambda x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False: (
        x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, *x_ND.shape, w_DK.shape[1], relu, accumulate
    ),
    "upsample": lambda x_NHWC, y_NPQC, bilinear=False: (
        x_NHWC, y_NPQC, *x_NHWC.shape, y_NPQC.shape[1] // x_NHWC.shape[1], bilinear
    ),
    "upsample_back": lambda dy_NPQC, dx_NHWC, bilinear=False: (
        dy_NPQC, dx_NHWC, *dx_NHWC.shape, dy_NPQC.shape[1] // dx_NHWC.shape[1], bilinear
    ),
    "max_pool": lambda x_NHWC, y_NPQC, where_NPQC, geometry: (
        x_NHWC, y_NPQC, where_NPQC, *_pool_extents(x_NHWC, y_NPQC, geometry)
    ),
    "max_pool_back": lambda dy_NPQC, where_NPQC, dx_NHWC, geometry: (
        dy_NPQC, where_NPQC, dx_NHWC, *_pool_extents(dx_NHWC, dy_NPQC, geometry)
    ),
    "avg_pool": lambda x_NHWC, y_NPQC, geometry: (x_NHWC, y_NPQC, *_pool_extents(x_NHWC, y_NPQC, geometry)),
    "avg_pool_back": lambda dy_NPQC, dx_NHWC, geometry: (dy_NPQC, dx_NHWC, *_pool_extents(dx_NHWC, dy_NPQC, geometry)),
    "batch_norm": lambda x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False, a_NHWC=None: (
        x_NHWC, gamma_C, beta_C, a_NHWC, y_NHWC, mean_GC, var_GC, *_rows(x_NHWC), ghost, eps, relu
    ),
    "batch_norm_back": lambda x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
    relu=False, accumulate=False: (
        x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, *_rows(x_NHWC), ghost, eps, relu,
        accumulate,
    ),
    "batch_norm_shares": lambda x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate=False: (
        mean_GC, var_GC, *_rows(x_NHWC), ghost, total, mean_C, var_C, accumulate
    ),
    "batch_norm_fixed": lambda x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False, a_NHWC=None: (
        x_NHWC, gamma_C, beta_C, a_NHWC, mean_C, var_C, y_NHWC, x_NHWC.size, gamma_C.size, eps, relu
    ),
    "batch_moments": lambda x_NHWC, moments_2C: (x_NHWC, moments_2C, x_NHWC.size, x_NHWC.shape[-1]),
    "batch_norm_sums": lambda x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False: (
        x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, x_NHWC.size, mean_C.size, relu
    ),
    "batch_norm_dx": lambda x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps: (
        x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, x_NHWC.size, gamma_C.size, eps
    ),
    "group_norm": lambda x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps: (
        x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, *x_NSC.shape, mean_NG.shape[1], eps
    ),
    "group_norm_back": lambda x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate=False:
    (
        x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, *x_NSC.shape, mean_NG.shape[1],
        accumulate,
    ),
    "embedding": lambda x_NL, w_VD, y_NLD: (x_NL, w_VD, y_NLD, x_NL.size, *w_VD.shape),
    "embedding_back": lambda x_NL, dy_NLD, dw_VD, accumulate=False: (
        x_NL, dy_NLD, dw_VD, x_NL.size, *dw_VD.shape, accumulate
    ),
    "add_bias": lambda x_ND, b_D, y_ND: (x_ND, b_D, y_ND, *x_ND.shape),
    "attention": lambda x_NLE, y_NLD, y_NHLL, causal=False: (
        x_NLE, y_NLD, y_NHLL, *y_NLD.shape, y_NHLL.shape[1], causal
    ),
    "attention_back": lambda x_NLE, y_NHLL, dy_NLD, dx_NLE: (
        x_NLE, y_NHLL, dy_NLD, dx_NLE, *dy_NLD.shape, y_NHLL.shape[1]
    ),
    "softmax": lambda x_NK, y_NK: (x_NK, y_NK, *x_NK.shape),
    "softmax_cross_entropy": lambda x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1, factor_1=None: (
        x_NK, labels_N, dx_NK, totals_3, *x_NK.shape, scale * host_number(factor_1), smoothing, ignore
    ),
    "sgd": lambda w, g, v, lr, momentum, decay, nesterov: (w, g, v, w.size, lr, momentum, decay, nesterov),
    "adamw": lambda w, g, m, v, lr, beta1, beta2, eps, decay, step: (
        w, g, m, v, w.size, lr, beta1, beta2, eps, decay, *_corrections(beta1, beta2, step)
    ),
    "adam": lambda w, g, m, v, lr, beta1, beta2, eps, decay, step: (
        w, g, m, v, w.size, lr, beta1, beta2, eps, decay, *_corrections(beta1, beta2, step)
    ),
    "rmsprop": lambda w, g, s, v, lr, momentum, alpha, eps, decay: (
        w, g, s, v, w.size, lr, momentum, alpha, eps, decay
    ),
    "adam_direction": lambda w, g, m, v, beta1, beta2, eps, decay, step: (
        w, g, m, v, w.size, beta1, beta2, eps, decay, *_corrections(beta1, beta2, step)
    ),
    "approach": lambda w, g, rate: (w, g, rate, w.size),
    "take_largest": lambda x, pairs, k, chunk=0: (
        x, *cut_pairs(pairs, pair_count(x.size, k, chunk), x.dtype), x.size, k, chunk
    ),
    "add_pairs": lambda pairs, y, k: (*cut_pairs(pairs, k, y.dtype), y, k),
    "take_levels": lambda x, levels, bits: (x, *cut_levels(levels, x.size, bits, x.dtype), x.size, bits),
    "add_levels": lambda levels, y, bits: (*cut_levels(levels, y.size, bits, y.dtype), y, y.size, bits),
    "pack_bits": lambda x, packed, width: (x, packed, x.size, width),
    "unpack_bits": lambda packed, x, width, k: (packed, x, x.size, width, k),
    "product": lambda a, b, y, a_transposed=False, b_transposed=False, accumulate=False: (
        a, b, y, *y.shape, a.shape[0 if a_transposed else 1], a_transposed, b_transposed, accumulate
    ),
    "orthonormalise": lambda x_MR: (x_MR, *x_MR.shape),
}  # fmt: skip


def kernel_call(name: str, arguments: Callable[..., tuple]) -> Callable[..., None]:
    """Return an operation that is one call of the kernel of its name."""

    def call(self, *args, **kwargs):
        getattr(self._kernels, name)(*arguments(*args, **kwargs))

    call.__name__ = arguments.__name__ = name  # in errors
    return call


class CpuOps(HostOps):
    """The operations on the CPU: those of :data:`KERNEL_ARGUMENTS`, and the methods below."""

    name = "cpu"
    vars().update({name: kernel_call(name, arguments) for name, arguments in KERNEL_ARGUMENTS.items()})

    def __init__(self, dtype="float32", threads: int | None = None):
        super().__init__(dtype)
        self.threads(threads_wanted() if threads is None else threads)
        self._sum, self._count = np.zeros(1), np.zeros(1, np.int64)

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    def threads(self, count: int) -> None:
        self._cache: dict[tuple, Any] = {}
        self._kernels = open_kernels(self.dtype, count)
        self.helpers = self._kernels if self._kernels.threads > 1 else None

    def describe(self) -> str:
        """Return the family of the kernels, and their threads."""
        return f"CPU {self._kernels.family}, {plural(self._kernels.threads, 'thread')}"

    def numerics(self) -> str:
        return self._kernels.numerics

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the memory that operations keep for themselves."""
        return self._kernels.workspace_bytes

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype=None):
        return aligned(shape, self.dtype if dtype is None else dtype)

    # ── elementwise ───────────────────────────────────────────────────────────────────────────────────────
    def add(self, a, b, y, relu=False):
        several = self._kernels.threads > 1 and y.size >= WORTH_THREADS and y.dtype == self.dtype
        if relu or several:  # one thread of NumPy adds as fast, and is called sooner
            self._kernels.add(a, b, y, y.size, relu)
        else:
            np.add(a, b, out=y)

    def dropout(self, x_ND, y_ND, examples_N, key_1, layer, rate):
        n, key = len(x_ND), keys.additive_key(int(key_1[0]), layer)
        sizes = n, x_ND.size // max(1, n)
        self._kernels.dropout(x_ND, y_ND, examples_N, *sizes, key, keys.dropout_threshold(rate), 1 / (1 - rate))

    # ── layers ────────────────────────────────────────────────────────────────────────────────────────────
    def conv2d_variant(self, x_shape, w_shape, geometry):
        p, q = geometry.output(x_shape[1]), geometry.output(x_shape[2])
        y_shape = x_shape[0], p, q, w_shape[3]
        names = (algorithm(geometry, x_shape, y_shape, self.dtype, to_inputs) for to_inputs in (False, True))
        return "/".join(dict.fromkeys(names))

    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False, moments=None, ghost=0):
        chosen = self._chosen(x_NHWC, w_RSCK, y_NPQK, geometry)
        chosen.forward(self.whole(x_NHWC), w_RSCK, b_K, y_NPQK, chosen.shape, relu)

    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False, add=False
    ):
        chosen, before = self._chosen(x_NHWC, w_RSCK, y_NPQK, geometry), dx_NHWC.copy() if add else None
        self.bias_back(y_NPQK, dy_NPQK, db_K, relu, accumulate)
        chosen.weights(self.whole(x_NHWC), dy_NPQK, dw_RSCK, chosen.shape, accumulate)
        if dx_NHWC is not None:
            chosen.back(dy_NPQK, w_RSCK, dx_NHWC, chosen.shape)
        if before is not None:
            self.add(dx_NHWC, before, dx_NHWC)

    def _chosen(self, x_NHWC, w_RSCK, y_NPQK, geometry):
        shapes = x_NHWC.shape, w_RSCK.shape, y_NPQK.shape
        return self._once(choose_kernels, self._kernels, self.dtype, *shapes, geometry)

    def depthwise_line(self, x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
        sizes = self._once(line_sizes, x_NLC.shape, geometry)
        self._kernels.depthwise_forward(x_NLC, w_SC, b_C, y_NPC, sizes, relu)

    def depthwise_line_back(
        self, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
    ):
        sizes = self._once(line_sizes, x_NLC.shape, geometry)
        self.bias_back(y_NPC, dy_NPC, db_C, relu, accumulate)
        self._kernels.depthwise_weights(x_NLC, dy_NPC, dw_SC, sizes, accumulate)
        if dx_NLC is not None:
            self._kernels.depthwise_back(dy_NPC, w_SC, dx_NLC, sizes)

    def columns(self, x, columns, geometry, group=0):
        self._kernels.columns(x, columns, self._once(_windows, x.shape, geometry), group)

    def columns_back(self, columns, b_C, x, geometry, group=0, relu=False):
        self._kernels.columns_back(columns, b_C, x, self._once(_windows, x.shape, geometry), group, relu)

    def _once(self, make: Callable, *arguments) -> Any:
        """Return ``make(*arguments)``, made at the first call."""
        key = make, *arguments
        if key not in self._cache:
            self._cache[key] = make(*arguments)
        return self._cache[key]

    def bias_back(self, y, dy, db_C, relu=False, accumulate=False):
        if relu or db_C is not None:
            self._kernels.unfinish(dy, y, db_C, dy.size, dy.shape[-1], relu, accumulate)

    def global_avg_pool(self, x_NHWC, y_NC):
        self._kernels.avg_pool(x_NHWC, y_NC, *_whole_image(x_NHWC))

    def global_avg_pool_back(self, dy_NC, dx_NHWC):
        self._kernels.avg_pool_back(dy_NC, dx_NHWC, *_whole_image(dx_NHWC))

    def value_loss(self, kind, x_N, labels_N, dx_N, totals_3, scale, delta=1.0, factor_1=None):
        kernels, scale = self._kernels, scale * host_number(factor_1)
        kernel = kernels.value_loss_of_classes if labels_N.dtype == np.int32 else kernels.value_loss
        kernel(VALUE_LOSSES.index(kind), x_N, labels_N, dx_N, totals_3, x_N.size, scale, delta)

    def prepare_images(self, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N):
        arrays = images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N
        kernel = getattr(self._kernels, PREPARE[images_NHWC.dtype.name])
        kernel(*arrays, *images_NHWC.shape, *y_NPQC.shape[1:3])

    # ── 16 bits for the wire ──────────────────────────────────────────────────────────────────────────────────
    def pack(self, x, packed):
        kernel = self._kernels.pack_half if packed.dtype == np.float16 else self._kernels.pack_bfloat16
        kernel(x.view(np.uint32), packed.view(np.uint16), x.size)

    def unpack(self, packed, x, accumulate=False):
        kernel = self._kernels.unpack_half if packed.dtype == np.float16 else self._kernels.unpack_bfloat16
        kernel(packed.view(np.uint16), x, x.size, accumulate)

    # ── reductions to the host ────────────────────────────────────────────────────────────────────────────
    def square_sum(self, x):
        self._kernels.square_sum(x, x.size, self._sum)
        return float(self._sum[0])

    def nonfinite(self, x):
        self._kernels.nonfinite(x, x.size, self._count)
        return int(self._count[0])


def _windows(shape, geometry):
    """The sizes of windows, which the kernels read as ``struct Windows``."""
    return np.array(window_sizes(shape, geometry), np.int64)


def _pool_extents(x_NHWC, y_NPQC, geometry):
    p, q = y_NPQC.shape[1:3]
    return *x_NHWC.shape, p, q, geometry.kernel, geometry.stride, geometry.pad


def _rows(x_NHWC):
    """Return (examples, pixels of an example, channels); x may be [N, C]."""
    return x_NHWC.shape[0], math.prod(x_NHWC.shape[1:-1]), x_NHWC.shape[-1]


def _corrections(beta1, beta2, step):
    """Return the factors that undo the bias of both moments after so many steps."""
    return 1 / (1 - power(beta1, step)), 1 / (1 - power(beta2, step))


def _whole_image(x_NHWC):
    """The extents of one window over all pixels, taken as one line of them."""
    pixels = math.prod(x_NHWC.shape[1:-1])
    return x_NHWC.shape[0], pixels, 1, x_NHWC.shape[-1], 1, 1, pixels, 1, 0


def aligned(shape, dtype):
    """Return an uninitialised array that starts on a cache line, for wide vector loads."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)
