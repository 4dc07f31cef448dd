"""Every strategy by its name, and which options go together."""

from collections.abc import Callable

from ringtrain.config import TrainConfig, config_fields, default_of
from ringtrain.errors import ConfigError
from ringtrain.exchange import allreduce, averaging, delayed, gossip, hybrid, master, pipeline, sharded
from ringtrain.exchange.base import Exchange, Kit
from ringtrain.exchange.wires import NONE

STRATEGIES: dict[str, Callable[[Kit], Exchange]] = {
    "allreduce": allreduce.make,
    "delayed": delayed.make,
    "sharded": sharded.make,
    "averaging": averaging.make,
    "gossip": gossip.make,
    "master": master.make,
}
DATA = "data"  # fully connected layers are as all others
# Where else they may live: what is made around the strategy, which has the other layers.
AROUND: dict[str, Callable[[Kit, Callable[[Kit], Exchange]], Exchange]] = {
    "hybrid": hybrid.make,
    "pipeline": pipeline.make,
}
# What belongs to one strategy alone, and to one way to place fully connected layers.
OWN = {
    "averaging": ("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"),
    "gossip": ("gossip_window",),
}
OWN_FC = {"pipeline": ("fc_ranks", "fc_in_flight", "fc_update")}
SUMS_ALONE = ("allreduce", "delayed")  # what they exchange is gradients


def make_exchange(kit: Kit) -> Exchange:
    """The strategy that a configuration names. Raises ConfigError for options that do not go together."""
    check_options(kit.config)
    make = STRATEGIES[kit.config.sync]
    return make(kit) if kit.config.fc == DATA else AROUND[kit.config.fc](kit, make)


def check_options(config: TrainConfig) -> None:
    for flag, owners in (("sync", OWN), ("fc", OWN_FC)):
        for owner, names in owners.items():
            for name in names if owner != getattr(config, flag) else ():
                _check_unused(config, name, flag, owner)
    if config.wire != NONE and config.sync not in SUMS_ALONE:
        raise ConfigError(
            f"--wire {config.wire} rounds what travels, and with --sync {config.sync} that is weights, which small "
            f"updates would never move: leave it out, or give --sync {' or '.join(SUMS_ALONE)}"
        )


def _check_unused(config: TrainConfig, name: str, flag: str, owner: str) -> None:
    given, default = getattr(config, name), default_of(config_fields()[name])
    if given != default:
        raise ConfigError(
            f"{name} is {given!r}, which --{flag} {getattr(config, flag)} has no use for: give --{flag} {owner}, or "
            f"leave it at {default!r}"
        )
