"""Batch normalisation of ghost batches on a host: one operation each way; in steps, for comparison with devices."""

from abc import abstractmethod

import numpy as np

from ringtrain.ops.base import Ops
from ringtrain.ops.normalised import Normalised


class HostNorm(Ops):
    """Batch normalisation, of operations on NumPy arrays."""

    @abstractmethod
    def batch_norm(self, x_NHWC, gamma_C, beta_C, y_NHWC, mean_GC, var_GC, ghost: int, eps: float, relu=False) -> None:
        """y = gamma · (x - mean)/sqrt(var + eps) + beta, with mean and (biased) variance of each ghost batch of
        ``ghost`` consecutive examples, the last one possibly smaller; they are kept in mean_GC and var_GC,
        G = ceil(N / ghost). Source: Ioffe & Szegedy 2015; ghost batches: Hoffer et al. 2017. x may have any number of
        spatial axes."""

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

    def batch_norm_fixed_add(self, x_NHWC, gamma_C, beta_C, a_NHWC, mean_C, var_C, y_NHWC, eps, relu=False) -> None:
        """y = batch_norm_fixed(x) + a"""
        self.batch_norm_fixed(x_NHWC, gamma_C, beta_C, mean_C, var_C, y_NHWC, eps)
        self.add(y_NHWC, a_NHWC, y_NHWC, relu)

    # ── in steps: a device's, of which no host that trains makes use ──────────────────────────────────────────
    def moment_parts(self, shape, ghost):
        return 0

    def positive_bytes(self, shape):
        return int(np.prod(shape))

    def norm_statistics(self, x_NHWC, statistics, moments=None):
        s, axes = statistics, tuple(range(x_NHWC.ndim - 1))
        for number, part in _ghosts(x_NHWC, s.ghost):
            x = x_NHWC[part]
            s.mean[number], s.var[number] = x.mean(axis=axes, dtype=np.float64), x.var(axis=axes, dtype=np.float64)
        s.scale[...] = s.gamma / np.sqrt(s.var + s.eps)

    def normalise(self, x_NHWC, statistics, y_NHWC, a_NHWC=None, positive=None, relu=False):
        s = statistics
        for number, part in _ghosts(x_NHWC, s.ghost):
            given = x_NHWC[part], s.gamma, s.beta, s.mean[number], s.var[number], y_NHWC[part], s.eps
            self.batch_norm_fixed(*given, relu and a_NHWC is None)
        if a_NHWC is not None:
            self.add(y_NHWC, a_NHWC, y_NHWC, relu)
        if positive is not None:
            positive[...] = y_NHWC.reshape(-1) > 0

    def normalise_back(
        self, x_NHWC, statistics, dy_NHWC, dgamma_C, dbeta_C, mean_C, var_C, dx_NHWC, total,
        positive=None, relu=False, accumulate=False,
    ):  # fmt: skip
        s, masked = statistics, relu
        y = self.whole(Normalised(x_NHWC, s, relu))
        if positive is not None:
            dy_NHWC[positive.reshape(dy_NHWC.shape) == 0] = 0
            masked = False
        given = x_NHWC, s.gamma, y, s.mean, s.var, dy_NHWC.copy(), dgamma_C, dbeta_C, dx_NHWC
        self.batch_norm_back(*given, s.ghost, s.eps, masked, accumulate)
        self.batch_norm_shares(x_NHWC, s.mean, s.var, s.ghost, total, mean_C, var_C, accumulate)

    def whole(self, x):
        """Return an input of a convolution as an array."""
        if not isinstance(x, Normalised):
            return x
        y = np.empty_like(x.x)
        self.normalise(x.x, x.statistics, y, relu=x.relu)
        return y


def _ghosts(x, ghost: int):
    """Yield each ghost batch's number, and its examples."""
    for number, start in enumerate(range(0, len(x), ghost)):
        yield number, slice(start, start + ghost)
