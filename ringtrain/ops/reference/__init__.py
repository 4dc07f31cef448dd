"""The operations in plain NumPy: short enough to check by eye, and the reference of the fast ones."""

import math

import numpy as np

from ringtrain.ops import keys
from ringtrain.ops.host import HostOps, host_number
from ringtrain.ops.reference import (
    activation,
    compression,
    conv,
    loss,
    norm,
    optim,
    pool,
    sequence,
    simple,
    upsample,
    wire,
)
from ringtrain.ops.reference import columns as columns_of

# Infinities and NaN are results that training reports, not warnings.
quiet = np.errstate(all="ignore")


class ReferenceOps(HostOps):
    """The operations in plain NumPy."""

    name = "reference"

    # ── the machine ───────────────────────────────────────────────────────────────────────────────────────
    def describe(self):
        return self.numerics()

    def numerics(self):
        return f"NumPy {np.__version__}"

    def threads(self, count):
        """Do nothing: NumPy's BLAS reads OPENBLAS_NUM_THREADS when it is loaded, and cannot change later."""

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────
    def empty(self, shape, dtype=None):
        return np.empty(shape, self.dtype if dtype is None else dtype)

    # ── elementwise ───────────────────────────────────────────────────────────────────────────────────────
    def fill(self, x, value):
        x[...] = value

    def copy(self, x, y):
        y[...] = x.reshape(y.shape)

    @quiet
    def add(self, a, b, y, relu=False):
        np.add(a, b, out=y)
        if relu:
            np.maximum(y, 0, out=y)

    @quiet
    def add_all(self, sources, targets):
        simple.add_all(sources, targets)

    @quiet
    def scale(self, x, factor):
        x *= x.dtype.type(host_number(factor))

    def relu(self, x, y):
        np.maximum(x, 0, out=y)

    def relu_back(self, y, dy, dx):
        dx[...] = simple.mask(dy, y, relu=True)

    @quiet
    def activation(self, kind, x_N, y_N):
        activation.forward(kind, x_N, y_N)

    @quiet
    def activation_back(self, kind, x_N, y_N, dy_N, dx_N):
        activation.back(kind, x_N, y_N, dy_N, dx_N)

    def concat(self, xs, y):
        np.concatenate(xs, axis=-1, out=y)

    def concat_back(self, dy, dxs):
        simple.concat_back(dy, dxs)

    @quiet
    def dropout(self, x_ND, y_ND, examples_N, key_1, layer, rate):
        simple.dropout(x_ND, y_ND, examples_N, keys.additive_key(int(key_1[0]), layer), rate)

    # ── layers ────────────────────────────────────────────────────────────────────────────────────────────
    @quiet
    def linear(self, x_ND, w_DK, b_K, y_NK, relu=False):
        simple.linear(x_ND, w_DK, b_K, y_NK, relu)

    @quiet
    def linear_back(self, x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False):
        simple.linear_back(x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu, accumulate)

    @quiet
    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False, moments=None, ghost=0):
        conv.conv2d(self.whole(x_NHWC), w_RSCK, b_K, y_NPQK, geometry, relu)

    @quiet
    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False, add=False
    ):
        held, arrays = dx_NHWC.copy() if add else None, (y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC)
        conv.conv2d_back(self.whole(x_NHWC), w_RSCK, *arrays, geometry, relu, accumulate)
        if held is not None:
            dx_NHWC += held

    @quiet
    def depthwise_line(self, x_NLC, w_SC, b_C, y_NPC, geometry, relu=False):
        conv.depthwise_line(x_NLC, w_SC, b_C, y_NPC, geometry, relu)

    @quiet
    def depthwise_line_back(
        self, x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu=False, accumulate=False
    ):
        conv.depthwise_line_back(x_NLC, w_SC, y_NPC, dy_NPC, dw_SC, db_C, dx_NLC, geometry, relu, accumulate)

    def columns(self, x, columns, geometry, group=0):
        columns_of.columns(x, columns, geometry, group)

    @quiet
    def columns_back(self, columns, b_C, x, geometry, group=0, relu=False):
        columns_of.columns_back(columns, b_C, x, geometry, group, relu)

    @quiet
    def bias_back(self, y, dy, db_C, relu=False, accumulate=False):
        dy[...] = simple.mask(dy, y, relu)
        simple.bias_gradient(dy, db_C, accumulate)

    @quiet
    def upsample(self, x_NHWC, y_NPQC, bilinear=False):
        upsample.upsample(x_NHWC, y_NPQC, bilinear)

    @quiet
    def upsample_back(self, dy_NPQC, dx_NHWC, bilinear=False):
        upsample.upsample_back(dy_NPQC, dx_NHWC, bilinear)

    def max_pool(self, x_NHWC, y_NPQC, where_NPQC, geometry):
        pool.max_pool(x_NHWC, y_NPQC, where_NPQC, geometry)

    @quiet
    def max_pool_back(self, dy_NPQC, where_NPQC, dx_NHWC, geometry):
        pool.max_pool_back(dy_NPQC, where_NPQC, dx_NHWC, geometry)

    @quiet
    def avg_pool(self, x_NHWC, y_NPQC, geometry):
        pool.avg_pool(x_NHWC, y_NPQC, geometry)

    @quiet
    def avg_pool_back(self, dy_NPQC, dx_NHWC, geometry):
        pool.avg_pool_back(dy_NPQC, dx_NHWC, geometry)

    @quiet
    def global_avg_pool(self, x_NHWC, y_NC):
        np.mean(x_NHWC, axis=tuple(range(1, x_NHWC.ndim - 1)), out=y_NC)

    @quiet
    def global_avg_pool_back(self, dy_NC, dx_NHWC):
        pixels = math.prod(dx_NHWC.shape[1:-1])
        dx_NHWC.reshape(len(dy_NC), pixels, dy_NC.shape[1])[...] = (dy_NC / dy_NC.dtype.type(pixels))[:, None, :]

    @quiet
    def lrn_across(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k):
        norm.lrn_across(x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta, k)

    @quiet
    def lrn_across_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        norm.lrn_across_back(x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta)

    @quiet
    def lrn_within(self, x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta):
        norm.lrn_within(x_NHWC, y_NHWC, scale_NHWC, size, alpha, beta)

    @quiet
    def lrn_within_back(self, x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta):
        norm.lrn_within_back(x_NHWC, y_NHWC, scale_NHWC, dy_NHWC, dx_NHWC, size, alpha, beta)

    @quiet
    def batch_norm(self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu=False):
        norm.batch_norm(x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost, eps, relu)

    @quiet
    def batch_norm_back(
        self, x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps,
        relu=False, accumulate=False,
    ):  # fmt: skip
        given = x_NHWC, gamma_C, y_NHWC, mean_GC, var_GC
        norm.batch_norm_back(*given, dy_NHWC, dgamma_C, dbeta_C, dx_NHWC, ghost, eps, relu, accumulate)

    def batch_norm_shares(self, x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate=False):
        norm.batch_norm_shares(x_NHWC, mean_GC, var_GC, ghost, total, mean_C, var_C, accumulate)

    @quiet
    def batch_moments(self, x_NHWC, moments_2C):
        norm.batch_moments(x_NHWC, moments_2C)

    def batch_norm_sums(self, x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu=False):
        norm.batch_norm_sums(x_NHWC, y_NHWC, mean_C, dy_NHWC, sums_2C, relu)

    def batch_norm_dx(self, x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps):
        norm.batch_norm_dx(x_NHWC, gamma_C, mean_C, var_C, dy_NHWC, sums_2C, count, dx_NHWC, eps)

    def batch_norm_fixed(self, x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu=False):
        norm.batch_norm_fixed(x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps, relu)

    @quiet
    def group_norm(self, x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps):
        norm.group_norm(x_NSC, gamma_C, beta_C, y_NSC, mean_NG, inverse_NG, eps)

    @quiet
    def group_norm_back(self, x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate=False):
        norm.group_norm_back(x_NSC, gamma_C, mean_NG, inverse_NG, dy_NSC, dgamma_C, dbeta_C, dx_NSC, accumulate)

    def embedding(self, x_NL, w_VD, y_NLD):
        sequence.embedding(x_NL, w_VD, y_NLD)

    @quiet
    def embedding_back(self, x_NL, dy_NLD, dw_VD, accumulate=False):
        sequence.embedding_back(x_NL, dy_NLD, dw_VD, accumulate)

    @quiet
    def add_bias(self, x_ND, b_D, y_ND):
        np.add(x_ND, b_D, out=y_ND)

    @quiet
    def attention(self, x_NLE, y_NLD, y_NHLL, causal=False):
        sequence.attention(x_NLE, y_NLD, y_NHLL, causal)

    @quiet
    def attention_back(self, x_NLE, y_NHLL, dy_NLD, dx_NLE):
        sequence.attention_back(x_NLE, y_NHLL, dy_NLD, dx_NLE)

    @quiet
    def softmax(self, x_NK, y_NK):
        loss.softmax(x_NK, y_NK)

    @quiet
    def softmax_cross_entropy(self, x_NK, labels_N, dx_NK, totals_3, scale, smoothing=0.0, ignore=-1, factor_1=None):
        scale *= host_number(factor_1)
        loss.softmax_cross_entropy(x_NK, labels_N, dx_NK, totals_3, scale, smoothing, ignore)

    @quiet
    def value_loss(self, kind, x_N, labels_N, dx_N, totals_3, scale, delta=1.0, factor_1=None):
        scale *= host_number(factor_1)
        loss.value_loss(kind, x_N, labels_N, dx_N, totals_3, scale, delta)

    def prepare_images(self, images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N):
        simple.prepare_images(images_NHWC, y_NPQC, mean_HWC, scale_C, top_N, left_N, flip_N)

    # ── rules of updates, on flat spans ─────────────────────────────────────────────────────────────────────────
    @quiet
    def sgd(self, w, g, v, lr, momentum, decay, nesterov):
        optim.sgd(w, g, v, lr, momentum, decay, nesterov)

    @quiet
    def adamw(self, w, g, m, v, lr, beta1, beta2, eps, decay, step):
        optim.adamw(w, g, m, v, lr, beta1, beta2, eps, decay, step)

    @quiet
    def adam(self, w, g, m, v, lr, beta1, beta2, eps, decay, step):
        optim.adam(w, g, m, v, lr, beta1, beta2, eps, decay, step)

    @quiet
    def rmsprop(self, w, g, s, v, lr, momentum, alpha, eps, decay):
        optim.rmsprop(w, g, s, v, lr, momentum, alpha, eps, decay)

    @quiet
    def adam_direction(self, w, g, m, v, beta1, beta2, eps, decay, step):
        optim.adam_direction(w, g, m, v, beta1, beta2, eps, decay, step)

    @quiet
    def approach(self, w, g, rate):
        w += rate * (g - w)

    # ── 16 bits for the wire ──────────────────────────────────────────────────────────────────────────────────
    @quiet
    def pack(self, x, packed):
        wire.pack(x, packed)

    @quiet
    def unpack(self, packed, x, accumulate=False):
        simple.put(wire.unpacked(packed), x, accumulate)

    # ── compressed gradients ──────────────────────────────────────────────────────────────────────────────────
    def take_largest(self, x, pairs, k):
        compression.take_largest(x, pairs, k)

    @quiet
    def add_pairs(self, pairs, y, k):
        compression.add_pairs(pairs, y, k)

    @quiet
    def product(self, a, b, y, a_transposed=False, b_transposed=False, accumulate=False):
        compression.product(a, b, y, a_transposed, b_transposed, accumulate)

    @quiet
    def orthonormalise(self, x_MR):
        compression.orthonormalise(x_MR)

    # ── reductions to the host ────────────────────────────────────────────────────────────────────────────
    @quiet
    def square_sum(self, x):
        return float(np.square(x, dtype=np.float64).sum())

    def nonfinite(self, x):
        return int(x.size - np.isfinite(x).sum())
