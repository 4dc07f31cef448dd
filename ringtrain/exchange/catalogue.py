"""Every strategy by its name, with its abilities, by which :mod:`ringtrain.exchange.compatibility` checks options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.collectives.catalogue import HALVES
from ringtrain.exchange import compatibility_texts as texts
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.servers.change_push import ChangePush
from ringtrain.exchange.servers.gradient_push import make_gradient_push
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.exchange.strategies.averaging import Averaging
from ringtrain.exchange.strategies.delayed import Delayed
from ringtrain.exchange.strategies.gossip import Gossip
from ringtrain.exchange.strategies.master import STAR, make_master
from ringtrain.exchange.strategies.sharded import make_sharded


def make_parameter_server(settings: ExchangeSettings) -> Exchange:
    """Return the strategy: workers push changes of weights if the run has a staleness or is asynchronous."""
    stale = settings.config.asynchronous or settings.config.staleness
    return (ChangePush if stale else make_gradient_push)(settings)


class AllowedValues(NamedTuple):
    """The values of an option that a strategy takes, and why it takes no other."""

    values: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The constructor of a strategy, and its abilities. No field has a default: a new strategy sets each.

    summary: one clause for the help
    options: options that this strategy uses and few others do

    In the other fields None means that the strategy goes with all values, and a text is the reason why it does not.
    Each has the name of its option, or of a value: ``--batch-norm sync``, ``--fc hybrid``, ``--fc pipeline``.
    ``--precision float16`` scales the loss, and keeps ``activations`` in 16 bits, as ``bfloat16`` does.
    """

    make: Callable[[ExchangeSettings], Exchange]
    summary: str
    options: tuple[str, ...]
    overlap: AllowedValues | None
    algorithm: AllowedValues | None
    tuning: str | None
    wire: str | None
    compress: str | None
    loss_scale: str | None
    activations: str | None
    batch_norm_sync: str | None
    hybrid: str | None
    pipeline: str | None
    reproducible: str | None
    check_replicas: str | None
    ema: str | None


STRATEGIES = {
    "allreduce": Strategy(
        make=AllReduce,
        summary="sum gradients and update everywhere",
        options=(),
        overlap=None,
        algorithm=None,
        tuning=None,
        wire=None,
        compress=None,
        loss_scale=None,
        activations=None,
        batch_norm_sync=None,
        hybrid=None,
        pipeline=None,
        reproducible=None,
        check_replicas=None,
        ema=None,
    ),
    "delayed": Strategy(
        make=Delayed,
        summary="apply the previous gradient while this one is exchanged",
        options=(),
        overlap=AllowedValues(
            ("backward", "forward"), "exchanges while the next iteration computes; {other} forbids that"
        ),
        algorithm=None,
        tuning=None,
        wire=None,
        compress=None,
        loss_scale="scales the loss; {other} applies a gradient after the scale has changed",
        activations=None,
        batch_norm_sync=None,
        hybrid=texts.HYBRID_DELAYED,
        pipeline=texts.HYBRID_DELAYED,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=None,
        ema=None,
    ),
    "sharded": Strategy(
        make=make_sharded,
        summary="each rank updates its slice and holds only its optimizer state",
        options=(),
        overlap=None,
        algorithm=AllowedValues(
            (AUTO, *HALVES), "updates between the two halves of an all-reduce; {other} has no halves"
        ),
        tuning="holds times of whole all-reduces; {other} runs their halves",
        wire=texts.WIRE,
        compress="needs the sums of whole parameters; {other} gives each rank the sums of its slice",
        loss_scale=None,
        activations=None,
        batch_norm_sync=None,
        hybrid=None,
        pipeline=None,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=None,
        ema=None,
    ),
    "averaging": Strategy(
        make=Averaging,
        summary="update locally and average the weights periodically",
        options=(
            *("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"),
            *("fragments", "average_delay", "mixing", "centre_rate"),
            *("servers", "dedicated", "asynchronous", "quorum", "grace_s"),
        ),
        overlap=None,
        algorithm=None,
        tuning=None,
        wire=None,
        compress=None,
        loss_scale=texts.SCALE_ALONE,
        activations=None,
        batch_norm_sync=texts.BATCH_NORM,
        hybrid=texts.HYBRID_APART,
        pipeline=texts.PIPELINE,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=texts.CHECK_REPLICAS,
        ema=texts.AVERAGE_APART,
    ),
    "gossip": Strategy(
        make=Gossip,
        summary="average with one other rank, or a few",
        options=("gossip_max_lag", "gossip_graph", "gossip_every", "consensus_rate", "outer_momentum", "outer_lr"),
        overlap=AllowedValues(
            ("backward",), "exchanges weights during the whole iteration; {other} cannot change that"
        ),
        algorithm=None,
        tuning=None,
        wire=texts.WIRE,
        compress=texts.COMPRESS_WEIGHTS,
        loss_scale=texts.SCALE_ALONE,
        activations=None,
        batch_norm_sync=texts.BATCH_NORM,
        hybrid=texts.HYBRID_APART,
        pipeline=texts.PIPELINE,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=texts.CHECK_REPLICAS,
        ema=texts.AVERAGE_APART,
    ),
    "master": Strategy(
        make=make_master,
        summary="rank 0 reads the data, computes the loss and updates",
        options=(),
        overlap=AllowedValues(("backward",), "updates on rank 0 between two passes; {other} cannot change that"),
        algorithm=AllowedValues(
            (AUTO, STAR), "gathers gradients on rank 0 and sends weights back, as the star does; {other} does not"
        ),
        tuning="holds times of all-reduces to choose from; {other} has one algorithm only",
        wire=texts.WIRE,
        compress=texts.COMPRESS_SERVERS,
        loss_scale=texts.HALVED_ACTIVATIONS,
        activations=texts.HALVED_ACTIVATIONS,
        batch_norm_sync=texts.BATCH_NORM,
        hybrid=None,
        pipeline=None,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=None,
        ema=None,
    ),
    "server": Strategy(
        make=make_parameter_server,
        summary="ranks that own spans sum and update",
        options=("servers", "dedicated", "asynchronous", "server_levels", "staleness"),
        overlap=None,
        algorithm=AllowedValues((AUTO,), texts.ALGORITHM_SERVERS),
        tuning=texts.TUNING_SERVERS,
        wire=texts.WIRE,
        compress=texts.COMPRESS_SERVERS,
        loss_scale="skips an update if a gradient overflows; with {other} some servers would skip it, others not",
        activations=None,
        batch_norm_sync=texts.BATCH_NORM,
        hybrid=None,
        pipeline=None,
        reproducible=texts.REPRODUCIBLE,
        check_replicas=None,
        ema=None,
    ),
}
DATA = "data"  # fully connected layers like all others
MakeExchange = Callable[[ExchangeSettings], Exchange]


def make_hybrid(settings: ExchangeSettings, make: MakeExchange) -> Exchange:
    from ringtrain.exchange.model_parallel.hybrid import Hybrid  # knows layers, as no other strategy does

    return Hybrid(settings, make)


def make_pipeline(settings: ExchangeSettings, make: MakeExchange) -> Exchange:
    from ringtrain.exchange.model_parallel import pipeline

    return pipeline.make_pipeline(settings, make)


# Exchanges that place fully connected layers elsewhere, made from the strategy of the other layers.
AROUND = {"hybrid": make_hybrid, "pipeline": make_pipeline}


def make_exchange(settings: ExchangeSettings) -> Exchange:
    """Return the strategy of a configuration, whose options :mod:`ringtrain.exchange.compatibility` has checked."""
    config = settings.config
    make = make_parameter_server if config.asynchronous else STRATEGIES[config.sync].make
    return make(settings) if config.fc == DATA else AROUND[config.fc](settings, make)
