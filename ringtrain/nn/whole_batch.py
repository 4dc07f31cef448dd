"""Batch normalisation by statistics of the whole global batch, distributed over ranks: *synchronised*.

    forward   rank k has n_k elements of a channel, of mean m_k and variance v_k. Summed over ranks:
              n_k, n_k·m_k, n_k·(v_k + m_k²); they make mean and variance of all n
    backward  summed over ranks: sum of dy, sum of dy·(x - mean). They make dx of every element

Sums are float64, two for each channel of a layer, so they cost latency and no bandwidth. A rank without
examples adds zeros: it has to take part, or the others wait. Gradients of gamma and beta are this rank's own sums; the
exchange adds the sums of all ranks, as it adds every gradient.

Source: Peng et al., MegDet, CVPR 2018, section 4.2"""

from dataclasses import dataclass

import numpy as np

from ringtrain.arrays import Array
from ringtrain.nn.base import AddOverRanks, Pass, Views


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Statistics of each channel over the whole batch, on the host. count: elements of a channel on all ranks; share:
    the fraction of them on this rank."""

    count: int
    share: float
    mean_C: np.ndarray
    var_C: np.ndarray


# Numbers of a run that diverges may be too large for squares and for float32: infinity and NaN go on to the loss.
overflowing = np.errstate(over="ignore", invalid="ignore")


@overflowing
def batch_statistics(ctx: Pass, name: str, x: Array, add_over_ranks: AddOverRanks) -> BatchStatistics:
    """Compute the statistics of the whole batch; collective."""
    C = x.shape[-1]
    local_count = x.size // C
    moments_2C = ctx.space(f"{name}.moments", (2, C), "float64")
    ctx.ops.batch_moments(x, moments_2C)
    mean_C, var_C = ctx.ops.to_host(moments_2C)
    sums = np.concatenate([local_count * mean_C, local_count * (var_C + mean_C**2), [local_count]])
    add_over_ranks(sums)
    count = int(sums[-1])
    mean_C = sums[:C] / count
    var_C = np.maximum(sums[C:-1] / count - mean_C**2, 0)  # rounding must not make it negative; a NaN stays one
    return BatchStatistics(count, local_count / count, mean_C, var_C)


@overflowing
def device_moments(ctx: Pass, name: str, statistics: BatchStatistics) -> tuple[Array, Array]:
    """Return (mean, variance) as arrays on the device."""
    shape, dtype = statistics.mean_C.shape, ctx.ops.dtype
    mean_C, var_C = (ctx.space(f"{name}.{what}", shape, dtype) for what in ("mean", "variance"))
    ctx.ops.upload(statistics.mean_C, mean_C)
    ctx.ops.upload(statistics.var_C, var_C)
    return mean_C, var_C


@overflowing
def parameter_gradients(
    ctx: Pass, statistics: BatchStatistics, eps: float, grads: Views, sums_2C: Array, wanted: bool
) -> None:
    """Compute the gradients of gamma and beta, and this rank's share of the running statistics' targets, from its own
    sums of :meth:`Ops.batch_norm_sums`. If the input's gradient is ``wanted``, the sums of all ranks replace its
    own; collective then."""
    ops, sums = ctx.ops, ctx.ops.to_host(sums_2C)
    ops.upload(sums[0], grads["beta"])
    ops.upload(sums[1] / np.sqrt(statistics.var_C + eps), grads["gamma"])
    ops.upload(statistics.share * statistics.mean_C, grads["mean"])
    ops.upload(
        statistics.share * statistics.var_C * (statistics.count / max(statistics.count - 1, 1)), grads["variance"]
    )
    if wanted:
        assert ctx.add_over_ranks is not None, "statistics of the whole batch come from a pass of all ranks"
        ctx.add_over_ranks(sums.reshape(-1))
        ops.upload(sums, sums_2C)
