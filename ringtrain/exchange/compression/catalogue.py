"""Every way to compress by its name."""

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.config.record import TrainConfig
from ringtrain.exchange.buckets.bucketed_allreduce import Summing
from ringtrain.exchange.compression.error_feedback import Compressing, Compression
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.transport.base import Transport

METHODS = {
    "top-k": lambda config: TopK(config.compress_ratio),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
}


def compression_of(config: TrainConfig) -> Compression | None:
    """A new one, as the configuration says."""
    if config.compress == NONE:
        return None
    return Compression(METHODS[config.compress](config), config.compress_from)


def make_summing(compression: Compression | None, transport: Transport, ops, **how) -> Summing | Compressing:
    """how: arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.Summing`"""
    return Compressing(compression, transport, ops, **how) if compression else Summing(transport, ops, **how)
