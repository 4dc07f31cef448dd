"""The operations on the CPU: numba kernels, and OpenBLAS for products. One thread by default.

An object keeps scratch memory, so it serves one thread of the program at a time.
"""

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.cpu.blas import PLAIN, TRANSPOSED, Blas
from ringtrain.ops.cpu.channels import CpuChannels
from ringtrain.ops.cpu.conv import CpuConvolution
from ringtrain.ops.cpu.kernels import elementwise, largest, loss, orthonormal, pool, response, wire
from ringtrain.ops.cpu.kernels.jit import compile_stats
from ringtrain.ops.cpu.scratch import Scratch, address, aligned
from ringtrain.ops.host import HostOps
from ringtrain.ops.pairs import INDEX, cut_pairs


class CpuOps(HostOps):
    """The operations on the CPU."""

    name = "cpu"

    def __init__(self, dtype="float32"):
        super().__init__(dtype)
        self._blas = Blas(self.dtype)
        self._scratch = Scratch()
        self._channels = CpuChannels(self.dtype, self._scratch)
        self._convolution = CpuConvolution(self.dtype, self._blas, self._scratch, self._channels)
        self._zero = np.zeros((), self.dtype)

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    def compile_stats(self) -> tuple[int, int]:
        """Return (kernels compiled anew, kernels loaded from the disk cache) in this process."""
        return compile_stats()

    def threads(self, count: int) -> None:
        """Let matrix products use ``count`` threads, in the whole process."""
        self._blas.threads(count)

    def describe(self) -> str:
        """Return the matrix library, the core of its kernels, and its threads."""
        return self._blas.describe()

    def numerics(self) -> str:
        return self._blas.numerics()

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype=None):
        return aligned(shape, self.dtype if dtype is None else dtype)

    # ── elementwise ───────────────────────────────────────────────────────────────────────────────────────
    def fill(self, x, value):
        x.fill(value)

    def copy(self, x, y):
        np.copyto(y, x.reshape(y.shape))

    def add(self, a, b, y, relu=False):
        if relu:
            elementwise.add_relu(a.reshape(-1), b.reshape(-1), y.reshape(-1))
        else:
            np.add(a, b, out=y)

    def add_all(self, sources, targets):
        total = self._scratch("total", sources[0].size, sources[0].dtype)[: sources[0].size]
        np.copyto(total, sources[0].reshape(-1))
        for source in sources[1:]:
            np.add(total, source.reshape(-1), out=total)
        for target in targets:
            np.copyto(target, total.reshape(target.shape))

    def scale(self, x, factor):
        elementwise.scale(x.reshape(-1), float(factor))

    def relu(self, x, y):
        np.maximum(x, self._zero, out=y)

    def relu_back(self, y, dy, dx):
        elementwise.relu_back(y.reshape(-1), dy.reshape(-1), dx.reshape(-1))

    def concat(self, xs, y):
        start = 0
        for x in xs:
            np.copyto(y[..., start : start + x.shape[-1]], x)
            start += x.shape[-1]

    def concat_back(self, dy, dxs):
        start = 0
        for dx in dxs:
            np.copyto(dx, dy[..., start : start + dx.shape[-1]])
            start += dx.shape[-1]

    def dropout(self, x_ND, y_ND, examples_N, key_1, layer, rate):
        width = x_ND.size // max(1, len(x_ND))
        key, threshold = np.uint64(keys.additive_key(int(key_1[0]), layer)), np.uint64(keys.dropout_threshold(rate))
        factor = 1 / (1 - rate)
        elementwise.dropout(x_ND.reshape(-1), y_ND.reshape(-1), examples_N, width, key, threshold, factor)

    # ── layers ────────────────────────────────────────────────────────────────────────────────────────────
    def linear(self, x_ND, w_DK, b_K, y_NK, relu=False):
        (n, d), k = x_ND.shape, w_DK.shape[1]
        if n:
            x, w, y = address(x_ND), address(w_DK), address(y_NK)
            self._blas.gemm(n, k, d, x, d, PLAIN, w, k, PLAIN, y, k, 0.0)
        self._channels.finish(y_NK.reshape(-1), b_K, relu)

    def linear_back(self, x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False):
        (n, d), k = x_ND.shape, w_DK.shape[1]
        self._channels.unfinish(dy_NK.reshape(-1), y_NK.reshape(-1), db_K, relu, accumulate)
        if n == 0:
            if not accumulate:
                dw_DK.fill(0)
            return
        x, w, dy, dw = address(x_ND), address(w_DK), address(dy_NK), address(dw_DK)
        self._blas.gemm(d, k, n, x, d, TRANSPOSED, dy, k, PLAIN, dw, k, 1.0 if accumulate else 0.0)
        if dx_ND is not None:
            self._blas.gemm(n, d, k, dy, k, PLAIN, w, k, TRANSPOSED, address(dx_ND), d, 0.0)

    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False):
        self._convolution.forward(x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu)

    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False
    ):
        given = x_NHWC, w_RSCK, y_NPQK
        self._convolution.back(*given, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu, accumulate)

    def max_pool(self, x_NHWC, y_NPQC, where_NPQC, geometry):
        extents = _pool_extents(x_NHWC, y_NPQC, geometry)
        pool.max_pool(x_NHWC.reshape(-1), y_NPQC.reshape(-1), where_NPQC.reshape(-1), *extents)

    def max_pool_back(self, dy_NPQC, where_NPQC, dx_NHWC, geometry):
        extents = _pool_extents(dx_NHWC, dy_NPQC, geometry)
        pool.max_pool_back(dy_NPQC.reshape(-1), where_NPQC.reshape(-1), dx_NHWC.reshape(-1), *extents)

    def avg_pool(self, x_NHWC, y_NPQC, geometry):
        pool.avg_pool(x_NHWC.reshape(-1), y_NPQC.reshape(-1), *_pool_extents(x_NHWC, y_NPQC, geometry))

    def avg_pool_back(self, dy_NPQC, dx_NHWC, geometry):
        extents = _pool_extents(dx_NHWC, dy_NPQC, geometry)
        pool.avg_pool_back(dy_NPQC.reshape(-1), dx_NHWC.reshape(-1), *extents)

    def global_avg_pool(self, x_NHWC, y_NC):
        n, height, width, c = x_NHWC.shape
        pool.global_avg_pool(x_NHWC.reshape(-1), y_NC.reshape(-1), n, height * width, c)

    def global_avg_pool_back(self, dy_NC, dx_NHWC):
        n, height, width, c = dx_NHWC.shape
        pool.global_avg_pool_back(dy_NC.reshape(-1), dx_NHWC.reshape(-1), n, height * width, c)

    def lrn_across(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k):
        c = x_NHWC.shape[3]
        arrays = x_NHWC.reshape(-1), y_NHWC.reshape(-1), scale_NHWC.reshape(-1)
        line = self._line(c + size - 1)
        response.across(*arrays, line, x_NHWC.size // c, c, size, float(alpha), float(beta), float(k))

    def lrn_across_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        c = x_NHWC.shape[3]
        arrays = (a.reshape(-1) for a in (x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC))
        line = self._line(c + size - 1)
        response.across_back(*arrays, line, x_NHWC.size // c, c, size, float(alpha), float(beta))

    def lrn_within(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta):
        arrays = x_NHWC.reshape(-1), y_NHWC.reshape(-1), scale_NHWC.reshape(-1)
        sums = self._image_and_line(x_NHWC, size)
        response.within(*arrays, *sums, *x_NHWC.shape, size, float(alpha), float(beta))

    def lrn_within_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        arrays = (a.reshape(-1) for a in (x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC))
        sums = self._image_and_line(x_NHWC, size)
        response.within_back(*arrays, *sums, *x_NHWC.shape, size, float(alpha), float(beta))

    def batch_norm(self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False):
        given = x_NHWC, gamma_C, beta_C
        self._channels.batch_norm(*given, y_NHWC, mean_GC, var_GC, ghost, float(eps), relu)

    def batch_norm_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        given, gradients = (x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC), (dy_NHWC, dgamma_C, dbeta_C, dx_NHWC)
        self._channels.batch_norm_back(*given, *gradients, ghost, float(eps), relu, accumulate)

    def batch_norm_shares(self, x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate=False):
        self._channels.batch_norm_shares(x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate)

    def batch_moments(self, x_NHWC, moments_2C):
        self._channels.batch_moments(x_NHWC, moments_2C)

    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
        self._channels.batch_norm_sums(x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu)

    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
        self._channels.batch_norm_dx(x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, float(eps))

    def batch_norm_fixed(self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False):
        given = x_NHWC, gamma_C, beta_C, mean_C, var_C
        self._channels.batch_norm_fixed(*given, y_NHWC, float(eps), relu)

    def softmax(self, x_NK, y_NK):
        loss.softmax(x_NK.reshape(-1), y_NK.reshape(-1), *x_NK.shape)

    def softmax_cross_entropy(self, x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1):
        x, wanted = x_NK.reshape(-1), dx_NK is not None
        dx = dx_NK.reshape(-1) if wanted else x
        factors = float(scale), float(smoothing), int(ignore)
        loss.softmax_cross_entropy(x, labels_N, dx, wanted, totals_3, x_NK.shape[1], *factors)

    def prepare_images(self, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N):
        flat = images_NHWC.reshape(-1), y_NPQC.reshape(-1), mean_HWC.reshape(-1)
        extents = images_NHWC.shape[1:3] + y_NPQC.shape[1:3]
        elementwise.prepare_images(*flat, scale_C, top_N, left_N, flip_N, *extents)

    # ── optimizers, on flat spans ─────────────────────────────────────────────────────────────────────────
    def sgd(self, w, g, v, lr, momentum, decay, nesterov):
        elementwise.sgd(w, g, v, float(lr), float(momentum), float(decay), bool(nesterov))

    def adamw(self, w, g, m, v, lr, beta1, beta2, eps, decay, step):
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        factors = (float(f) for f in (lr, beta1, beta2, eps, decay))
        elementwise.adamw(w, g, m, v, *factors, *corrections)

    def adam_direction(self, w, g, m, v, beta1, beta2, eps, decay, step):
        corrections = 1 / (1 - beta1**step), 1 / (1 - beta2**step)
        factors = (float(f) for f in (beta1, beta2, eps, decay))
        elementwise.adam_direction(w, g, m, v, *factors, *corrections)

    def approach(self, w, g, rate):
        elementwise.approach(w, g, float(rate))

    # ── 16 bits for the wire ──────────────────────────────────────────────────────────────────────────────────
    def pack(self, x, packed):
        kernel = wire.pack_half if packed.dtype == np.float16 else wire.pack_bfloat16
        kernel(x.view(np.uint32), packed.view(np.uint16))

    def unpack(self, packed, x, accumulate=False):
        if packed.dtype == np.float16:
            kernel = wire.add_half if accumulate else wire.unpack_half
        else:
            kernel = wire.add_bfloat16 if accumulate else wire.unpack_bfloat16
        kernel(packed.view(np.uint16), x)

    # ── compressed gradients ──────────────────────────────────────────────────────────────────────────────────
    def take_largest(self, x, pairs, k):
        bits, places = x.view(f"u{x.itemsize}"), self._scratch("places", x.size, INDEX)
        counts = self._scratch("counts", largest.BINS, np.int64)
        values, indices = cut_pairs(pairs, k, x.dtype)
        largest.find(bits, k, indices, places, counts)
        largest.take(x, indices, values)

    def add_pairs(self, pairs, y, k):
        values, indices = cut_pairs(pairs, k, y.dtype)
        largest.add(values, indices, y)

    def product(self, a, b, y, a_transposed=False, b_transposed=False, accumulate=False):
        (m, n), k = y.shape, a.shape[0 if a_transposed else 1]
        orders = [TRANSPOSED if transposed else PLAIN for transposed in (a_transposed, b_transposed)]
        if y.size:
            left, right = (address(a), a.shape[1], orders[0]), (address(b), b.shape[1], orders[1])
            self._blas.gemm(m, n, k, *left, *right, address(y), n, 1.0 if accumulate else 0.0)

    def orthonormalise(self, x_MR):
        orthonormal.orthonormalise(x_MR)

    # ── reductions to the host ────────────────────────────────────────────────────────────────────────────
    def square_sum(self, x):
        lanes = self._scratch("lanes", elementwise.LANES, np.float64)
        return elementwise.square_sum(x.reshape(-1), lanes)

    def nonfinite(self, x):
        return elementwise.nonfinite(x.reshape(-1))

    def _image_and_line(self, x_NHWC, size):
        _, height, width, c = x_NHWC.shape
        return self._scratch("image", height * width * c, self.dtype), self._line((width + size - 1) * c)

    def _line(self, count):
        return self._scratch("line", count, self.dtype)[:count]


def _pool_extents(x_NHWC, y_NPQC, geometry):
    p, q = y_NPQC.shape[1:3]
    return *x_NHWC.shape, p, q, geometry.kernel, geometry.stride, geometry.pad
