"""Every strategy by its name, and which options go together."""

from collections.abc import Callable, Mapping, Sequence

from ringtrain.collectives.canonical import NAME as CANONICAL
from ringtrain.config import TrainConfig, config_fields, default_of
from ringtrain.errors import ConfigError
from ringtrain.exchange import allreduce, averaging, delayed, gossip, hybrid, master, pipeline, server, sharded
from ringtrain.exchange.base import Exchange, Kit
from ringtrain.exchange.compressions import check_compression
from ringtrain.exchange.wires import NONE
from ringtrain.ops.precision import HALVES

STRATEGIES: dict[str, Callable[[Kit], Exchange]] = {
    "allreduce": allreduce.make,
    "delayed": delayed.make,
    "sharded": sharded.make,
    "averaging": averaging.make,
    "gossip": gossip.make,
    "master": master.make,
    "server": server.make,
}
DATA = "data"  # fully connected layers are as all others
# Where else they may live: what is made around the strategy, which has the other layers.
AROUND: dict[str, Callable[[Kit, Callable[[Kit], Exchange]], Exchange]] = {
    "hybrid": hybrid.make,
    "pipeline": pipeline.make,
}
# What belongs to few strategies: each option with those that have a use for it; and to few ways to place those layers.
OWN = {
    **dict.fromkeys(
        ("average_every", "average_momentum", "average_from", "outer_momentum", "outer_lr"), ("averaging",)
    ),
    **dict.fromkeys(("server_levels", "staleness"), ("server",)),
    **dict.fromkeys(("servers", "dedicated", "asynchronous"), ("server", "averaging")),
    "gossip_window": ("gossip",),
}
OWN_FC = dict.fromkeys(("fc_ranks", "fc_in_flight", "fc_update"), ("pipeline",))
# What a strategy can do of --overlap, where that is not all, and why.
OVERLAPS = {
    "delayed": (
        ("backward", "forward"),
        "it exchanges while the next iteration computes, of which none leaves nothing",
    ),
    "gossip": (("backward",), "it exchanges weights, in the whole of an iteration"),
    "master": (("backward",), "every pass begins and ends at rank 0, which has to have updated before"),
}
SUMS_ALONE = ("allreduce", "delayed")  # what they exchange is gradients
SENDS_ACTIVATIONS = ("master", "hybrid", "pipeline")
# Who can leave an update out together, by the sum of a scaled loss's gradients; and why others cannot.
SCALABLE = ("allreduce", "sharded")
UNSCALABLE = {
    "delayed": "it applies a gradient when the factor has moved on",
    "averaging": "ranks update alone, and some of them would leave out what others do",
    "gossip": "ranks update alone, and some of them would leave out what others do",
    "server": "servers update parts of the sum each, of which one may be finite and another not",
    "top-k": "what is kept back for later was made with another factor",
    "powersgd": "what is kept back for later was made with another factor",
}
# What --reproducible wants of other options, and why: gradients of whole shards, each added once in one order.
IN_ONE_ORDER = {
    "sync": ("allreduce", "the sum over all shards is made in one order, and then every rank updates by it"),
    "fc": ("data", "what is divided among ranks is added in an order that depends on how many there are"),
    "wire": (NONE, "what is rounded on its way depends on which sums travel, and so on the number of ranks"),
    "compress": (NONE, "what is left out for later depends on which sums travel, and so on the number of ranks"),
    "accumulate": (1, "each of its shards is a micro-batch already: more --shards are smaller ones"),
}
IN_STEP = ("allreduce", "sharded", "delayed")  # every rank goes through every layer, at the same weights as all others


def make_exchange(kit: Kit) -> Exchange:
    """The strategy that a configuration names. Raises ConfigError for options that do not go together."""
    check_options(kit.config)
    make = STRATEGIES[kit.config.sync]
    return make(kit) if kit.config.fc == DATA else AROUND[kit.config.fc](kit, make)


def check_options(config: TrainConfig) -> None:
    check_compression(config)
    for flag, table in (("sync", OWN), ("fc", OWN_FC)):
        for name, owners in table.items():
            if getattr(config, flag) not in owners:
                _check_unused(config, name, flag, owners)
    _check_overlap(config)
    if config.wire != NONE and config.sync not in SUMS_ALONE:
        raise ConfigError(
            f"--wire {config.wire} rounds what travels, and with --sync {config.sync} that is weights, which small "
            f"updates would never move: leave it out, or give --sync {' or '.join(SUMS_ALONE)}"
        )
    if config.batch_norm == "sync":
        _check_whole_batch(config)
    _check_activations(config)
    check_scaling(config)
    _check_reproducible(config)


def _check_reproducible(config: TrainConfig) -> None:
    if not config.reproducible:
        _check_unshared(config)
        return
    for name, (wanted, why) in IN_ONE_ORDER.items():
        if getattr(config, name) != wanted:
            raise ConfigError(
                f"--reproducible does not go with --{name} {getattr(config, name)}: {why}. Give --{name} {wanted}, or "
                "leave --reproducible out"
            )


def _check_unshared(config: TrainConfig) -> None:
    if config.algorithm == CANONICAL:
        raise ConfigError(
            f"--algorithm {CANONICAL} adds gradients of shards in one tree, and there are shards with --reproducible "
            "alone: give that, or another algorithm"
        )
    if config.shards != default_of(config_fields()["shards"]):
        raise ConfigError(
            f"shards is {config.shards}, for which a run without --reproducible has no use: give --reproducible, or "
            "leave it out"
        )


def _check_overlap(config: TrainConfig) -> None:
    able, why = OVERLAPS.get(config.sync, ((config.overlap,), ""))
    if config.overlap not in able:
        raise ConfigError(
            f"--overlap {config.overlap} does not go with --sync {config.sync}: {why}. Give --overlap "
            f"{' or '.join(able)}, or --sync allreduce"
        )


def _check_activations(config: TrainConfig) -> None:
    for flag, value in {"sync": config.sync, "fc": config.fc}.items():
        if config.precision in HALVES and value in SENDS_ACTIVATIONS:
            raise ConfigError(
                f"--{flag} {value} sends what lies between layers, and does that in float32, whereas --precision "
                f"{config.precision} keeps it in 16 bits: give --precision tf32, or another --{flag}"
            )


def check_scaling(config: TrainConfig) -> None:
    """Raises ConfigError where the loss is scaled, and should not be, or cannot."""
    if config.precision != "float16":
        if config.loss_scale is not None:
            raise ConfigError(
                f"--loss-scale {config.loss_scale:g} is of --precision float16, and the precision is "
                f"{config.precision}, in which no gradient is too small: leave it out"
            )
        return
    for flag, value in {"sync": config.sync, "compress": config.compress}.items():
        if value in UNSCALABLE:
            raise ConfigError(
                f"--precision float16 scales the loss, and leaves an update out where a gradient overflows, which "
                f"--{flag} {value} cannot: {UNSCALABLE[value]}. Give --precision bfloat16, which wants no scale, or "
                f"--sync {' or '.join(SCALABLE)} without --compress"
            )


def _check_whole_batch(config: TrainConfig) -> None:
    if config.sync not in IN_STEP:
        raise ConfigError(
            f"--batch-norm sync sums statistics over all ranks in each layer, where they must all be, at the same "
            f"weights, and --sync {config.sync} does not see to that: leave it out, or give --sync "
            f"{', '.join(IN_STEP[:-1])} or {IN_STEP[-1]}"
        )
    if config.accumulate > 1:
        raise ConfigError(
            "--batch-norm sync takes statistics over the whole batch, and a micro-batch of --accumulate "
            f"{config.accumulate} would be normalised before the others are there: leave one of them out"
        )


def without_former(table: Mapping, given: Mapping) -> dict:
    """The options of a run that goes on, less those that belong to a strategy, or a place of layers, which ``given``
    replaces by another."""
    former = {
        name
        for flag, names in (("sync", OWN), ("fc", OWN_FC))
        if given.get(flag, table.get(flag)) != table.get(flag)
        for name in names
    }
    return {name: value for name, value in table.items() if name not in former}


def _check_unused(config: TrainConfig, name: str, flag: str, owners: Sequence[str]) -> None:
    given, default = getattr(config, name), default_of(config_fields()[name])
    if given != default:
        raise ConfigError(
            f"{name} is {given!r}, which --{flag} {getattr(config, flag)} has no use for: give --{flag} "
            f"{' or '.join(owners)}, or leave it at {default!r}"
        )
