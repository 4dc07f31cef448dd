"""Every strategy by its name."""

from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError, nearest
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.parts import DATA, HYBRID, PARTS, Parts
from ringtrain.exchange.servers.change_push import ChangePush
from ringtrain.exchange.servers.gradient_push import make_gradient_push
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.strategies.allreduce import AllReduce
from ringtrain.exchange.strategies.averaging import Averaging
from ringtrain.exchange.strategies.delayed import Delayed
from ringtrain.exchange.strategies.gossip import Gossip
from ringtrain.exchange.strategies.master import make_master
from ringtrain.exchange.strategies.sharded import make_sharded
from ringtrain.records import WORDS


def make_parameter_server(settings: ExchangeSettings) -> Exchange:
    """Return the strategy: workers push changes of weights if the run has a staleness or is asynchronous."""
    stale = settings.config.asynchronous or settings.config.staleness
    return (ChangePush if stale else make_gradient_push)(settings)


@dataclass(frozen=True, slots=True)
class OwnOption:
    """An option of a plug-in's strategy: ``--plugin-option NAME=VALUE``. Values are of the type of the default."""

    name: str
    default: bool | int | float | str
    help: str

    def __str__(self) -> str:
        return f"--plugin-option {self.name}={self.default}: {self.help}"

    def parse(self, text: str) -> bool | int | float | str:
        """Return the value of a text. Raises ValueError, KeyError"""
        kind = type(self.default)
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The constructor of a strategy, and what the command line asks of it."""

    make: Callable[[ExchangeSettings], Exchange]
    parts: Callable[[ExchangeConfig], Parts]  # its parts under a configuration, which decide with which options it goes
    summary: str  # one clause for the help
    options: tuple[str, ...] = ()  # options that this strategy uses and few others do
    plugin_options: tuple[OwnOption, ...] = ()  # of a plug-in; :func:`own_options` returns their values


STRATEGIES = {
    "allreduce": Strategy(AllReduce, PARTS["allreduce"], "sum gradients and update everywhere"),
    "delayed": Strategy(Delayed, PARTS["delayed"], "apply the previous gradient while this one is exchanged"),
    "sharded": Strategy(
        make_sharded, PARTS["sharded"], "each rank updates its slice and holds only its optimizer state"
    ),
    "averaging": Strategy(
        Averaging,
        PARTS["averaging"],
        "update locally and average the weights periodically",
        (
            *("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"),
            *("fragments", "average_delay", "mixing", "centre_rate"),
            *("servers", "dedicated", "asynchronous", "quorum"),
        ),
    ),
    "gossip": Strategy(
        Gossip,
        PARTS["gossip"],
        "average with one other rank, or a few",
        ("gossip_max_lag", "gossip_graph", "gossip_every", "outer_momentum", "outer_lr"),
    ),
    "master": Strategy(make_master, PARTS["master"], "rank 0 reads the data, computes the loss and updates"),
    "server": Strategy(
        make_parameter_server,
        PARTS["server"],
        "ranks that own spans sum and update",
        ("servers", "dedicated", "asynchronous", "staleness"),
    ),
}


def make_exchange(settings: ExchangeSettings) -> Exchange:
    """Return the strategy of a configuration, whose options :mod:`ringtrain.exchange.compatibility` has checked."""
    config = settings.config
    if config.fc != DATA:
        from ringtrain.exchange.model_parallel import hybrid, pipeline  # know layers, as no other strategy does

        return hybrid.Hybrid(settings) if config.fc == HYBRID else pipeline.make_pipeline(settings)
    return (make_parameter_server if config.asynchronous else STRATEGIES[config.strategy].make)(settings)


def own_options(config: ExchangeConfig) -> dict[str, bool | int | float | str]:
    """Return the values of the options that the strategy of a plug-in declares. Raises ConfigError for others."""
    declared = {option.name: option for option in STRATEGIES[config.strategy].plugin_options}
    values = {name: option.default for name, option in declared.items()}
    for text in config.plugin_option:
        name, _, value = text.partition("=")
        typed = f"--plugin-option {text}"
        if name not in declared:
            options = f"has no {name!r}: {nearest(name, declared)}" if declared else "has no options of its own"
            raise ConfigError(f"{typed}: --sync {config.sync} {options}")
        try:
            values[name] = declared[name].parse(value)
        except (KeyError, ValueError):
            raise ConfigError(f"{typed}: it wants {WORDS[type(values[name])]}: {declared[name]}") from None
    return values
