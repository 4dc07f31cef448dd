"""``--reproducible``: checks kernels, and describes them."""

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import ConfigError, everywhere
from ringtrain.ops.base import Ops
from ringtrain.transport.agree import holders, ranks_by_value
from ringtrain.transport.base import Transport


def check_kernels(config: ExchangeConfig, transport: Transport, ops: Ops) -> None:
    """Raise ConfigError, on every rank, if a shard's gradient would depend on its rank. Collective."""
    if not config.reproducible:
        return
    everyone = transport.gather_json(ops.numerics())
    if len(set(everyone)) > 1:
        raise everywhere(
            ConfigError(
                "--reproducible wants the same kernels on every rank, and there are "
                f"{holders(ranks_by_value(everyone))}: install one ringtrain everywhere; where a CPU has no fused "
                "multiply-adds, let all do without (mpirun -x RINGTRAIN_CPU_FAMILY=x86-64-v2)"
            )
        )


def describe_numerics(config: ExchangeConfig, ops: Ops) -> str | None:
    """The header's line on the bits of a run; None if nothing is fixed."""
    if not config.reproducible:
        return None
    return f"the same weights bit by bit on 1 to {config.shards} ranks: {config.shards} shards, {ops.numerics()}"


def moved(config: ExchangeConfig, ops: Ops, former: str | None) -> str | None:
    """The note that other kernels, the ``former``, computed the checkpoint, or None."""
    if not config.reproducible or not former or former == ops.numerics():
        return None
    return (
        f"the checkpoint was computed by {former}, and this is {ops.numerics()}: from here on the bits are not those "
        "of a run that stayed there"
    )
