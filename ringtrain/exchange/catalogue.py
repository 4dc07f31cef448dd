"""Every strategy by its name."""

from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange import parts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.parts import DATA, HYBRID, PIPELINE, Parts
from ringtrain.exchange.servers.change_push import ChangePush
from ringtrain.exchange.servers.gradient_push import make_gradient_push
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.exchange.strategies.averaging import Averaging
from ringtrain.exchange.strategies.delayed import Delayed
from ringtrain.exchange.strategies.gossip import Gossip
from ringtrain.exchange.strategies.master import make_master
from ringtrain.exchange.strategies.sharded import make_sharded


def make_parameter_server(settings: ExchangeSettings) -> Exchange:
    """Return the strategy: workers push changes of weights if the run has a staleness or is asynchronous."""
    stale = settings.config.asynchronous or settings.config.staleness
    return (ChangePush if stale else make_gradient_push)(settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The constructor of a strategy, and what the command line asks of it.

    parts:   its parts under a configuration, which decide with which options it goes
    summary: one clause for the help
    options: options that this strategy uses and few others do
    """

    make: Callable[[ExchangeSettings], Exchange]
    parts: Callable[[ExchangeConfig], Parts]
    summary: str
    options: tuple[str, ...] = ()


STRATEGIES = {
    "allreduce": Strategy(
        make=AllReduce,
        parts=parts.summed_by_all,
        summary="sum gradients and update everywhere",
    ),
    "delayed": Strategy(
        make=Delayed,
        parts=parts.summed_late,
        summary="apply the previous gradient while this one is exchanged",
    ),
    "sharded": Strategy(
        make=make_sharded,
        parts=parts.summed_by_slices,
        summary="each rank updates its slice and holds only its optimizer state",
    ),
    "averaging": Strategy(
        make=Averaging,
        parts=parts.averaged,
        summary="update locally and average the weights periodically",
        options=(
            *("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"),
            *("fragments", "average_delay", "mixing", "centre_rate"),
            *("servers", "dedicated", "asynchronous", "quorum"),
        ),
    ),
    "gossip": Strategy(
        make=Gossip,
        parts=parts.averaged_by_pairs,
        summary="average with one other rank, or a few",
        options=("gossip_max_lag", "gossip_graph", "gossip_every", "consensus_rate", "outer_momentum", "outer_lr"),
    ),
    "master": Strategy(
        make=make_master,
        parts=parts.summed_by_root,
        summary="rank 0 reads the data, computes the loss and updates",
    ),
    "server": Strategy(
        make=make_parameter_server,
        parts=parts.summed_by_servers,
        summary="ranks that own spans sum and update",
        options=("servers", "dedicated", "asynchronous", "server_levels", "staleness"),
    ),
}
MakeExchange = Callable[[ExchangeSettings], Exchange]


def make_hybrid(settings: ExchangeSettings, make: MakeExchange) -> Exchange:
    from ringtrain.exchange.model_parallel.hybrid import Hybrid  # knows layers, as no other strategy does

    return Hybrid(settings, make)


def make_pipeline(settings: ExchangeSettings, make: MakeExchange) -> Exchange:
    from ringtrain.exchange.model_parallel import pipeline

    return pipeline.make_pipeline(settings, make)


# Exchanges that place fully connected layers elsewhere, made from the strategy of the other layers.
AROUND = {HYBRID: make_hybrid, PIPELINE: make_pipeline}


def make_exchange(settings: ExchangeSettings) -> Exchange:
    """Return the strategy of a configuration, whose options :mod:`ringtrain.exchange.compatibility` has checked."""
    config = settings.config
    make = make_parameter_server if config.asynchronous else STRATEGIES[config.strategy].make
    return make(settings) if config.fc == DATA else AROUND[config.fc](settings, make)
