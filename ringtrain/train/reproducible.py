"""``--reproducible``: what is fixed besides the order in which gradients are added, and what is said of it."""

from ringtrain.config import FIXED_WHERE_REPRODUCIBLE, TrainConfig
from ringtrain.errors import ConfigError, everywhere
from ringtrain.ops.base import Ops
from ringtrain.train.together import holders
from ringtrain.transport.base import Transport


def threads_of(config: TrainConfig) -> int | None:
    """Threads of a product that are set, as its bits may hang on them; None: what the environment says."""
    return 1 if config.reproducible and config.threads is None else config.threads


def numerics_of(config: TrainConfig) -> dict:
    """What a run that is reproducible goes on with as it began."""
    return {key: getattr(config, key) for key in FIXED_WHERE_REPRODUCIBLE} | {"threads": threads_of(config)}


def check_kernels(config: TrainConfig, transport: Transport, ops: Ops) -> None:
    """Collective. Raises ConfigError, on every rank, where a shard's gradient would hang on who computes it."""
    if not config.reproducible:
        return
    everyone = transport.gather_json(ops.numerics())
    if len(set(everyone)) > 1:
        told = (
            f"--reproducible wants the same kernels on every rank, and there are {holders(everyone)}: use machines of "
            "one kind, or of CPUs name the oldest core to all ranks (mpirun -x OPENBLAS_CORETYPE=Haswell)"
        )
        raise everywhere(ConfigError(told))


def words(config: TrainConfig, ops: Ops) -> str | None:
    """For the header; None where nothing is fixed."""
    if not config.reproducible:
        return None
    threads = threads_of(config)
    return (
        f"the same weights bit by bit on 1 to {config.shards} ranks: {config.shards} shards, {ops.numerics()}, "
        f"{threads} thread{'s' * (threads != 1)}"
    )


def moved(config: TrainConfig, ops: Ops, former: str | None) -> str | None:
    """What is to be said where a checkpoint was computed by the ``former`` kernels; None where nothing is."""
    if not config.reproducible or not former or former == ops.numerics():
        return None
    return (
        f"the checkpoint was computed by {former}, and this is {ops.numerics()}: from here on the bits are not those "
        "of a run that stayed there"
    )
