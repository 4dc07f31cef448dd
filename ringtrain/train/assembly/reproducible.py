"""``--reproducible``: fixes and checks kernels and threads, and describes them."""

from ringtrain.config.record import FIXED_WHERE_REPRODUCIBLE, TrainConfig
from ringtrain.errors import ConfigError, everywhere
from ringtrain.humanize import plural
from ringtrain.ops.base import Ops
from ringtrain.train import texts
from ringtrain.train.agree import holders
from ringtrain.transport.base import Transport


def threads_of(config: TrainConfig) -> int | None:
    """Threads of a product that are set, as its bits may hang on them; None: what the environment says."""
    return 1 if config.reproducible and config.threads is None else config.threads


def numerics_of(config: TrainConfig) -> dict:
    """The settings that a reproducible run keeps when it resumes."""
    return {key: getattr(config, key) for key in FIXED_WHERE_REPRODUCIBLE} | {"threads": threads_of(config)}


def check_kernels(config: TrainConfig, transport: Transport, ops: Ops) -> None:
    """Collective. Raises ConfigError, on every rank, where a shard's gradient would hang on who computes it."""
    if not config.reproducible:
        return
    everyone = transport.gather_json(ops.numerics())
    if len(set(everyone)) > 1:
        raise everywhere(ConfigError(texts.OTHER_KERNELS(kernels=holders(everyone))))


def words(config: TrainConfig, ops: Ops) -> str | None:
    """For the header; None where nothing is fixed."""
    if not config.reproducible:
        return None
    threads = plural(threads_of(config), "thread")
    return texts.REPRODUCIBLE(shards=config.shards, kernels=ops.numerics(), threads=threads)


def moved(config: TrainConfig, ops: Ops, former: str | None) -> str | None:
    """A note where other kernels, the ``former``, computed the checkpoint; else None."""
    if not config.reproducible or not former or former == ops.numerics():
        return None
    return texts.MOVED(former=former, kernels=ops.numerics())
