"""Every way to compress by its name."""

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce
from ringtrain.exchange.compression.error_feedback import CompressionSettings, ErrorFeedback
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.exchange.settings import ExchangeSettings

METHODS = {
    "top-k": lambda config: TopK(config.compress_ratio),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
}


def make_summing(settings: ExchangeSettings) -> BucketedAllReduce | ErrorFeedback:
    """Plain sums, or compressed sums, as the configuration says."""
    config = settings.config
    if config.compress == NONE:
        return BucketedAllReduce(settings)
    return ErrorFeedback(CompressionSettings(METHODS[config.compress](config), config.compress_from), settings)
