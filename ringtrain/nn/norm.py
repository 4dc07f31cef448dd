"""Normalisation: of batches, and of each example by itself: layer and group."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringtrain.nn import shapes, whole_batch
from ringtrain.nn.base import Fill, Fusable, Layer, Parameter
from ringtrain.nn.settings import number, whole
from ringtrain.ops.normalised import Measured, Normalised, NormStatistics

IN_STEPS = 3  # values of the tape of a BatchNorm whose operations are fused


@dataclass(frozen=True)
class BatchNorm(Fusable):
    """y = gamma · (x - mean)/sqrt(variance + eps) + beta, channel by channel. In training mean and variance
    are of each ghost batch of ``ghost`` consecutive examples, so the result does not depend on the
    size of a rank's batch; in evaluation they are the running averages, which move by ``rate`` an iteration.
    ``gamma`` is the initial scale: 0 in the last one of a residual block (Goyal et al. 2017). If the pass
    adds over ranks, mean and variance are of the whole batch instead (:mod:`ringtrain.nn.whole_batch`).

    The running averages are parameters of role statistic: their "gradient" is this rank's share of the
    batch's statistics, so one exchange sums it like any gradient.

    If scale and shift are frozen, training too normalises by the running averages, which do not move.

    sums: y = … + a, where a is a second input of the same shape; deferred: the convolution that alone reads y makes it
    as it reads x, where operations are ``fused``. Neither is a key of model files (:mod:`ringtrain.nn.fuse`).

    Shapes: x [N,...,C], of any number of spatial axes; gamma, beta, mean, variance [C]
    Source: Ioffe & Szegedy 2015; ghost batches: Hoffer et al. 2017"""

    ghost: int = whole(1, 32)
    eps: float = number(1e-5, above=0)
    rate: float = number(0.1, above=0, high=1)
    gamma: float = number(1.0)
    sums: bool = field(default=False, kw_only=True)
    deferred: bool = field(default=False, kw_only=True)

    def _input(self, inputs):
        return shapes.single(self, inputs[:1] if self.sums else inputs)

    def shape(self, inputs):
        return self._input(inputs)

    def parameters(self, inputs):
        C = self._input(inputs)[-1:]
        return (
            Parameter("gamma", C, Fill("constant", self.gamma), "norm"),
            Parameter("beta", C, Fill("constant", 0.0), "norm"),
            Parameter("mean", C, Fill("constant", 0.0), "statistic", rate=self.rate),
            Parameter("variance", C, Fill("constant", 1.0), "statistic", rate=self.rate),
        )

    def flops(self, inputs):
        return 2 * shapes.element_count(inputs[0])

    def repeats(self, ctx):
        return ctx.add_over_ranks is None or not ctx.training or self.is_fixed

    @property
    def is_fixed(self) -> bool:
        """Whether training too normalises by the running averages."""
        return {"gamma", "beta"} <= self.frozen

    def forward(self, ctx, weights, xs):
        if ctx.makes_ghost_statistics and not self.is_fixed:
            return self._forward_in_steps(ctx, weights, xs)
        x = xs[0]
        y = ctx.space.shared(f"{self.name}.y", x.shape)
        arrays = (x, weights["gamma"], weights["beta"])
        end = {"relu": self.relu, "a_NHWC": xs[1] if self.sums else None}
        if not ctx.training or self.is_fixed:
            ctx.ops.batch_norm_fixed(*arrays, weights["mean"], weights["variance"], y, self.eps, **end)
            return y, (x, y, weights["mean"], weights["variance"], None) if ctx.training else None
        if ctx.add_over_ranks is not None:
            batch = whole_batch.batch_statistics(ctx, self.name, x, ctx.add_over_ranks)
            mean_C, var_C = whole_batch.device_moments(ctx, self.name, batch)
            ctx.ops.batch_norm_fixed(*arrays, mean_C, var_C, y, self.eps, **end)
            return y, (x, y, mean_C, var_C, batch)
        groups = (-(-x.shape[0] // self.ghost), x.shape[-1])
        mean_GC, var_GC = (ctx.space(f"{self.name}.{what}", groups, ctx.ops.dtype) for what in ("mean", "variance"))
        ctx.ops.batch_norm(*arrays, y, mean_GC, var_GC, self.ghost, self.eps, **end)
        return y, (x, y, mean_GC, var_GC, None)

    def _forward_in_steps(self, ctx, weights, xs):
        x, moments = xs[0] if isinstance(xs[0], Measured) else (xs[0], None)
        groups, C = -(-x.shape[0] // self.ghost), x.shape[-1]
        mean, var, scale = (
            ctx.space(f"{self.name}.{what}", (groups, C), ctx.ops.dtype) for what in ("mean", "variance", "scale")
        )
        statistics = NormStatistics(mean, var, scale, weights["gamma"], weights["beta"], self.ghost, self.eps)
        ctx.ops.norm_statistics(x, statistics, moments)
        if self.deferred:
            return Normalised(x, statistics, self.relu), (x, statistics, None)
        y, positive = ctx.space.shared(f"{self.name}.y", x.shape), None
        if self.sums and self.relu:
            positive = ctx.space(f"{self.name}.positive", (ctx.ops.positive_bytes(x.shape),), np.uint8)
        ctx.ops.normalise(x, statistics, y, xs[1] if self.sums else None, positive, relu=self.relu)
        return y, (x, statistics, positive)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, *_ = tape
        dx = ctx.space.shared(f"{self.name}.dx", x.shape) if wanted[0] else None
        dxs = (dx, dy)[: len(wanted)]  # dy, by now masked, is the gradient of what is added
        if len(tape) == IN_STEPS:
            _, statistics, positive = tape
            outputs = [grads[name] for name in ("gamma", "beta", "mean", "variance")]
            ctx.ops.normalise_back(
                x, statistics, dy, *outputs, dx, ctx.total, positive, relu=self.relu, accumulate=ctx.accumulate
            )
            return dxs
        _, y, mean_GC, var_GC, batch = tape
        if self.is_fixed or batch is not None:
            self._backward_by_sums(ctx, weights["gamma"], grads, dy, tape, dx)
            return dxs
        arrays = x, weights["gamma"], y, mean_GC, var_GC, dy, grads["gamma"], grads["beta"], dx
        ctx.ops.batch_norm_back(*arrays, self.ghost, self.eps, relu=self.relu, accumulate=ctx.accumulate)
        shares = grads["mean"], grads["variance"]
        ctx.ops.batch_norm_shares(x, mean_GC, var_GC, self.ghost, ctx.total, *shares, accumulate=ctx.accumulate)
        return dxs

    def _backward_by_sums(self, ctx, gamma_C, grads, dy, tape, dx) -> None:
        """Gradients by statistics of all ranks; or by the running averages, which depend on no x, and stay."""
        x, y, mean_C, var_C, batch = tape
        sums_2C = ctx.space(f"{self.name}.sums", (2, x.shape[-1]), "float64")
        ctx.ops.batch_norm_sums(x, y, mean_C, dy, sums_2C, relu=self.relu)  # masks dy
        if batch is not None:
            whole_batch.parameter_gradients(ctx, batch, self.eps, grads, sums_2C, dx is not None)
        else:
            for array in (*grads.values(), sums_2C):
                ctx.ops.fill(array, 0)
        if dx is not None:
            ctx.ops.batch_norm_dx(x, gamma_C, mean_C, var_C, dy, sums_2C, batch.count if batch else 1, dx, self.eps)


@dataclass(frozen=True)
class ExampleNorm(Layer):
    """y = gamma · (x - mean)/sqrt(variance + eps) + beta, with statistics of each example by itself: the same in
    training and evaluation.

    Shapes: x [N,...,C]; gamma, beta [C]"""

    eps: float = field(default=1e-5, kw_only=True, metadata={"kind": float, "above": 0, "high": None})

    @abstractmethod
    def _view(self, x) -> tuple[Any, int]:
        """Return x as the [N,S,C] of :meth:`ringtrain.ops.base.Ops.group_norm`, and the number of groups."""

    def parameters(self, inputs):
        C = shapes.single(self, inputs)[-1:]
        return (
            Parameter("gamma", C, Fill("constant", 1.0), "norm"),
            Parameter("beta", C, Fill("constant", 0.0), "norm"),
        )

    def flops(self, inputs):
        return 7 * shapes.element_count(inputs[0])  # 1 of the mean, 3 of the variance, 3 of y

    def forward(self, ctx, weights, xs):
        (x,) = xs
        y = ctx.space.shared(f"{self.name}.y", x.shape)
        (x_NSC, groups), (y_NSC, _) = self._view(x), self._view(y)
        shape = x_NSC.shape[0], groups
        mean_NG, inverse_NG = (ctx.space(f"{self.name}.{what}", shape, ctx.ops.dtype) for what in ("mean", "inverse"))
        ctx.ops.group_norm(x_NSC, weights["gamma"], weights["beta"], y_NSC, mean_NG, inverse_NG, self.eps)
        return y, (x, mean_NG, inverse_NG)

    def backward(self, ctx, weights, grads, dy, tape, wanted):
        x, mean_NG, inverse_NG = tape
        dx = ctx.space.shared(f"{self.name}.dx", x.shape) if wanted[0] else None
        (x_NSC, _), (dy_NSC, _) = self._view(x), self._view(dy)
        dx_NSC = None if dx is None else self._view(dx)[0]
        arguments = x_NSC, weights["gamma"], mean_NG, inverse_NG, dy_NSC, grads["gamma"], grads["beta"], dx_NSC
        ctx.ops.group_norm_back(*arguments, accumulate=ctx.accumulate)
        return (dx,)


@dataclass(frozen=True)
class LayerNorm(ExampleNorm):
    """Normalisation over the last axis. Source: Ba et al. 2016; torch.nn.LayerNorm"""

    def shape(self, inputs):
        return shapes.single(self, inputs)

    def _view(self, x):
        return x.reshape((shapes.element_count(x.shape[:-1]), 1, x.shape[-1])), 1


@dataclass(frozen=True)
class GroupNorm(ExampleNorm):
    """Normalisation over all pixels, or places, and the channels of a group. Source: Wu & He 2018"""

    groups: int = whole(1)

    def shape(self, inputs):
        shape = shapes.single(self, inputs)
        if shape[-1] % self.groups:
            raise shapes.misfit(self, inputs, f"channels that groups = {self.groups} divides")
        return shape

    def _view(self, x):
        return x.reshape((x.shape[0], shapes.element_count(x.shape[1:-1]), x.shape[-1])), self.groups
