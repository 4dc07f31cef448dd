"""The settings that every strategy is made from."""

from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.allreduce.tuning_table import Table
from ringtrain.config.record import TrainConfig
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.monitor.guard import Guard
from ringtrain.transport.base import Transport


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """What a strategy is made from.

    tuning: what ``auto`` chooses by, on rank 0; None where there is none
    guard:  watches what ranks do together; None where there is none
    share:  share(count, part, parts) → (start, stop): the examples that are one part's
    beside: from the sum of squares of the gradients over the arena to that with all others, which are clipped together
    scale:  what the loss is multiplied by; None where that is 1
    """

    config: TrainConfig
    transport: Transport
    ops: object
    tuning: Table | None = None
    guard: Guard | None = None
    share: Callable[[int, int, int], tuple[int, int]] | None = None
    beside: Callable[[float], float] = float
    scale: LossScale | None = None


def settings(kit: ExchangeSettings) -> dict:
    """What a configuration says of all-reduces: arguments of :class:`Summing`."""
    config = kit.config
    return {
        "algorithm": config.algorithm,
        "bucket_bytes": config.bucket_bytes,
        "segment_bytes": config.segment_bytes,
        "deadline_s": config.deadline_s,
        "wire": config.wire,
        "tuning": kit.tuning,
        "guard": kit.guard,
        "overlap": config.overlap,
    }
