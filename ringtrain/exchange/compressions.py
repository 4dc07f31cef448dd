"""Every way to compress by its name, and what it goes together with."""

from ringtrain.config import TrainConfig, config_fields, default_of
from ringtrain.errors import ConfigError
from ringtrain.exchange.compressing import Compressing, Compression
from ringtrain.exchange.powersgd import PowerSGD
from ringtrain.exchange.summing import Summing
from ringtrain.exchange.topk import TopK
from ringtrain.exchange.wires import NONE
from ringtrain.transport.base import Transport

METHODS = {
    "top-k": lambda config: TopK(config.compress_ratio),
    "powersgd": lambda config: PowerSGD(config.compress_rank),
}
# Who has a use for an option.
USED_BY = {"compress_ratio": ("top-k",), "compress_rank": ("powersgd",), "compress_from": tuple(METHODS)}
COMPRESSIBLE = ("allreduce", "delayed")
WHY_NOT = {
    "sharded": "a rank gets the sums of its slice alone, and largest elements and factors are of whole parameters",
    "averaging": "weights travel, and what is left out of a weight cannot be sent later: nobody adds weights up",
    "gossip": "weights travel, and what is left out of a weight cannot be sent later: nobody adds weights up",
    "server": "a server updates spans as they come and sends weights back, and those would travel whole",
    "master": "rank 0 updates and sends weights back, and those would travel whole",
}


def compression_of(config: TrainConfig) -> Compression | None:
    """A new one, as the configuration says."""
    if config.compress == NONE:
        return None
    return Compression(METHODS[config.compress](config), config.compress_from)


def make_summing(compression: Compression | None, transport: Transport, ops, **how) -> Summing | Compressing:
    """how: arguments of :class:`ringtrain.exchange.summing.Summing`"""
    return Compressing(compression, transport, ops, **how) if compression else Summing(transport, ops, **how)


def check_compression(config: TrainConfig) -> None:
    """Raises ConfigError for what does not go together."""
    for name, users in USED_BY.items():
        given, default = getattr(config, name), default_of(config_fields()[name])
        if given != default and config.compress not in users:
            raise ConfigError(
                f"{name} is {given!r}, which --compress {config.compress} has no use for: give --compress "
                f"{' or '.join(users)}, or leave it at {default!r}"
            )
    if config.compress == NONE:
        return
    if config.sync not in COMPRESSIBLE:
        raise ConfigError(
            f"--compress {config.compress} does not go with --sync {config.sync}: {WHY_NOT[config.sync]}. Leave it "
            f"out, or give --sync {' or '.join(COMPRESSIBLE)}"
        )
    if config.fc != "data":
        raise ConfigError(
            f"--compress {config.compress} does not go with --fc {config.fc}: the gradients of divided layers never "
            "travel, and there is no residual of theirs to keep. Leave one out"
        )
    if config.overlap == "forward":
        raise ConfigError(
            f"--compress {config.compress} does not go with --overlap forward: what is compressed comes in two "
            "rounds, and all ranks wait for them in one order, at the end of an iteration. Leave one out"
        )
    if config.wire != NONE:
        raise ConfigError(
            f"--compress {config.compress} has its own way to send less, and --wire {config.wire} would round what is "
            "left without keeping what that loses: leave one out"
        )
