"""The settings that every strategy is made from."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ringtrain.allreduce.tuning_table import Table
from ringtrain.config.record import TrainConfig
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.monitor.guard import Guard
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """The configuration of a run, and the objects of this rank that a strategy works with.

    tuning: measurements that ``auto`` chooses by, on rank 0; None without measurements
    guard:  watches the collectives; None without a guard
    share:  share(count, part, parts) → (start, stop): the examples of one part
    add_external_square_norm: maps the sum of squares of the gradients over the arena to the sum of all gradients that
            are clipped together; None: there are no others
    scale:  the factor of the loss; None if it is 1
    """

    config: TrainConfig
    transport: Transport
    ops: Ops
    tuning: Table | None = None
    guard: Guard | None = None
    share: Callable[[int, int, int], tuple[int, int]] | None = None
    add_external_square_norm: Callable[[float], float] | None = None
    scale: LossScale | None = None

    def with_options(self, **options) -> "ExchangeSettings":
        """Return the same settings with other values of these options."""
        return replace(self, config=replace(self.config, **options))
