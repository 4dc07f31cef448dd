"""Every method of compression by its name."""

from collections.abc import Callable

from ringtrain.allreduce.wire_formats import NONE
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.buckets.bucketed_allreduce import BucketedAllReduce, GradientReduction
from ringtrain.exchange.compression.error_feedback import ErrorFeedback
from ringtrain.exchange.compression.method import Compressor
from ringtrain.exchange.compression.powersgd import PowerSGD
from ringtrain.exchange.compression.topk import TopK
from ringtrain.exchange.settings import ExchangeSettings

METHODS: dict[str, Callable[[ExchangeConfig], Compressor]] = {
    "top-k": lambda config: TopK(config.compress_ratio),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
}


def make_gradient_reduction(settings: ExchangeSettings) -> GradientReduction:
    """Return plain or compressed sums, as the configuration says."""
    config = settings.config
    if config.compress == NONE:
        return BucketedAllReduce(settings)
    return ErrorFeedback(METHODS[config.compress](config), config.compress_from, settings)
