"""The settings that every strategy is made from."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ringtrain.allreduce.tuning_table import Table
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.monitor.guard import Guard
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """The options of an exchange, the objects of this rank that a strategy works with, and what an exchange needs to
    know of the training."""

    config: ExchangeConfig
    transport: Transport
    ops: Ops
    tuning: Table | None = None  # measurements that ``auto`` chooses by, on rank 0; None without measurements
    guard: Guard | None = None  # watches the collectives; None without a guard
    # share(count, part, parts) → (start, stop): the examples of one part
    share: Callable[[int, int, int], tuple[int, int]] | None = None
    scale: LossScale | None = None  # the factor of the loss; None if it is 1
    model: str = ""  # the name of the model
    batch: int = 1  # examples of an iteration, over all ranks
    accumulate: int = 1  # micro-batches of an iteration on each rank
    clip_norm: float | None = None  # the largest norm of the gradient; None: it is not clipped
    seed: int = 0

    def with_options(self, **options) -> "ExchangeSettings":
        """Return the same settings with other values of these options."""
        return replace(self, config=replace(self.config, **options))
