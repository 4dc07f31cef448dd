"""``--reproducible``: checks kernels, and describes them."""

from ringtrain.config.record import FIXED_WHERE_REPRODUCIBLE, TrainConfig
from ringtrain.errors import ConfigError, everywhere
from ringtrain.ops.base import Ops
from ringtrain.train.agree import holders, ranks_by_value
from ringtrain.transport.base import Transport


def numerics_of(config: TrainConfig) -> dict:
    """The settings that a reproducible run keeps when it resumes."""
    return {key: getattr(config, key) for key in FIXED_WHERE_REPRODUCIBLE}


def check_kernels(config: TrainConfig, transport: Transport, ops: Ops) -> None:
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


def describe_numerics(config: TrainConfig, ops: Ops) -> str | None:
    """The header's line on the bits of a run; None if nothing is fixed."""
    if not config.reproducible:
        return None
    return f"the same weights bit by bit on 1 to {config.shards} ranks: {config.shards} shards, {ops.numerics()}"


def moved(config: TrainConfig, ops: Ops, former: str | None) -> str | None:
    """The note that other kernels, the ``former``, computed the checkpoint, or None."""
    if not config.reproducible or not former or former == ops.numerics():
        return None
    return (
        f"the checkpoint was computed by {former}, and this is {ops.numerics()}: from here on the bits are not those "
        "of a run that stayed there"
    )
