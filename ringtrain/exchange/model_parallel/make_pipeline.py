"""Makes this rank's end of a pipeline."""

from collections.abc import Callable
from dataclasses import replace

from ringtrain.exchange.base import Exchange
from ringtrain.exchange.buckets.reduce_scatter import schedule_name
from ringtrain.exchange.buckets.sum_over_ranks import SumOverRanks
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.layer_placement import check_ranks
from ringtrain.exchange.model_parallel.pipeline import Pipeline
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.exchange.model_parallel.pipeline_front import PipelineFront
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.transport.loopback import Loopback

OUTSIDE = -1


class OutsideFront(Loopback):
    """The ``size`` ranks in front, for a rank behind: their number, and no messages with them."""

    def __init__(self, size: int):
        super().__init__()
        self.seat = replace(self.seat, rank=OUTSIDE, size=size)


def make_pipeline(settings: ExchangeSettings, make_inner: Callable[[ExchangeSettings], Exchange]) -> Pipeline:
    """Return the end of this rank: in front, with the strategy of ``make_inner`` among the ranks there, or behind.
    Raises ConfigError unless ranks are left in front."""
    config, transport = settings.config, settings.transport
    check_ranks(transport.size, config.fc_ranks)
    ranks = range(transport.size - config.fc_ranks)
    front = transport.lasting_group(ranks)
    norm = SumOverRanks(settings)

    def add_parts(squares: float) -> float:
        """Add the square norm of all parts behind to the layers' in front, which every rank there has."""
        return norm(0.0 if transport.rank else squares)

    # The guard numbers the collectives of all ranks, and knows no collectives of some ranks.
    within = replace(
        settings,
        transport=front or OutsideFront(len(ranks)),
        guard=None,
        tuning=None,
        add_external_square_norm=add_parts,
    )
    inner = make_inner(within.with_options(algorithm=schedule_name(config.algorithm, transport)))
    mail = ActivationChannel(transport, settings.ops, config.deadline_s)
    if front is None:  # it has made the strategy for its facts alone
        return PipelineBehind(settings, mail, inner.facts, norm)
    return PipelineFront(settings, mail, inner)
