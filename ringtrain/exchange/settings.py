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
    know of the training.

    tuning: measurements that ``auto`` chooses by, on rank 0; None without measurements
    guard:  watches the collectives; None without a guard
    share:  share(count, part, parts) → (start, stop): the examples of one part
    add_external_square_norm: maps the sum of squares of the gradients over the arena to the sum of all gradients that
            are clipped together; None: there are no others
    scale:  the factor of the loss; None if it is 1
    model:  the name of the model
    batch:  examples of an iteration, over all ranks
    accumulate:       micro-batches of an iteration on each rank
    clip_norm:        the largest norm of the gradient; None: it is not clipped
    batch_statistics: whether layers normalise by statistics of the whole batch, which ranks sum in each pass
    """

    config: ExchangeConfig
    transport: Transport
    ops: Ops
    tuning: Table | None = None
    guard: Guard | None = None
    share: Callable[[int, int, int], tuple[int, int]] | None = None
    add_external_square_norm: Callable[[float], float] | None = None
    scale: LossScale | None = None
    model: str = ""
    batch: int = 1
    accumulate: int = 1
    clip_norm: float | None = None
    seed: int = 0
    batch_statistics: bool = False

    def with_options(self, **options) -> "ExchangeSettings":
        """Return the same settings with other values of these options."""
        return replace(self, config=replace(self.config, **options))
