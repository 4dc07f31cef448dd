"""Every way to compress by its name."""

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.config.record import TrainConfig
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.compression.error_feedback import CompressionSettings, ErrorFeedback
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.transport.base import Transport

METHODS = {
    "top-k": lambda config: TopK(config.compress_ratio),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
}


def compression_of(config: TrainConfig) -> CompressionSettings | None:
    """A new one, as the configuration says."""
    if config.compress == NONE:
        return None
    return CompressionSettings(METHODS[config.compress](config), config.compress_from)


def make_summing(
    compression: CompressionSettings | None, transport: Transport, ops, **how
) -> BucketedAllReduce | ErrorFeedback:
    """how: arguments of :class:`ringtrain.exchange.buckets.bucketed_allreduce.BucketedAllReduce`"""
    return (
        ErrorFeedback(compression, transport, ops, **how) if compression else BucketedAllReduce(transport, ops, **how)
    )
