"""The strategies, made from a transport, ops and a few options; an option that is not given is as here."""

from dataclasses import fields

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.exchange.catalogue import make_exchange, make_parameter_server
from ringtrain.exchange.compression import error_feedback
from ringtrain.exchange.servers.change_push import ChangePush
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies import allreduce, averaging, delayed, gossip, master, sharded

BESIDE = {each.name for each in fields(ExchangeSettings)}  # the options
SHORT = {
    "every": "average_every",
    "momentum": "average_momentum",
    "begin": "average_from",
    "window": "gossip_max_lag",
}


def settings_of(transport, ops, *, outer=None, **options):
    beside = {name: options.pop(name) for name in BESIDE & set(options)}
    if outer is not None:
        options["outer_momentum"], options["outer_lr"] = outer
    if "shards" in options:
        options["reproducible"] = True
    config = ExchangeConfig(**{SHORT.get(name, name): value for name, value in options.items()})
    return ExchangeSettings(config, transport, ops, **beside)


class Maker:
    def __init__(self, strategy, **always):
        self.__name__, self._strategy, self._always = strategy.__name__, strategy, always

    def __call__(self, transport, ops, **options):
        return self._strategy(settings_of(transport, ops, **{**self._always, **options}))

    def __repr__(self):
        return self.__name__


def error_feedback_of(method, begin, transport, ops, **options):
    settings = settings_of(transport, ops, **{"algorithm": "ring", **options})
    return error_feedback.ErrorFeedback(method, begin, settings)


def AllReduce(transport, ops, **options):
    """By the ring, but for sums of shards."""
    default = "auto" if "shards" in options else "ring"
    return allreduce.AllReduce(settings_of(transport, ops, **{"algorithm": default, **options}))


def StaleParameterServer(sync, transport, ops, staleness=None, **options):
    """Workers push changes of weights, with staleness 0 too."""
    options |= {"asynchronous": True} if staleness is None else {"staleness": staleness}
    return ChangePush(settings_of(transport, ops, sync=sync, **options))


Delayed = Maker(delayed.Delayed, sync="delayed", algorithm="ring")
Sharded = Maker(sharded.make_sharded, sync="sharded")
Averaging = Maker(averaging.Averaging, sync="averaging", algorithm="ring")
Gossip = Maker(gossip.Gossip, sync="gossip", algorithm="ring")
Master = Maker(master.make_master, sync="master")
ParameterServer = Maker(make_parameter_server, sync="server")
Pipeline = Maker(make_exchange, fc="pipeline")
