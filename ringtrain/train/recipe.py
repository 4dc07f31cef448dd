"""What the configuration leaves open: for how long, at what rate, with which hyperparameters, on which crops."""

from ringtrain.config import TrainConfig
from ringtrain.data.augment import Augment, Centre
from ringtrain.data.sampler import Sampler
from ringtrain.errors import ConfigError
from ringtrain.lr import LearningRate, scaled
from ringtrain.nn.spec import ModelSpec
from ringtrain.optim import Hyper


def iterations_of(config: TrainConfig, sampler: Sampler) -> int:
    if config.iterations is not None:
        return config.iterations
    return config.epochs * sampler.iterations_per_epoch


def rate_of(config: TrainConfig, iterations: int) -> LearningRate:
    lr = scaled(config.lr, config.batch, config.base_batch) if config.base_batch else config.lr
    return LearningRate(
        lr, config.lr_policy, config.lr_steps, config.lr_gamma, config.lr_power, config.warmup, iterations
    )


def hyper_of(config: TrainConfig) -> Hyper:
    """Raises ConfigError for a setting that the optimizer has no use for."""
    for key, owners in (("trust", ("lars",)), ("trust_limit", ("lars", "lamb"))):
        if getattr(config, key) is not None and config.optimizer not in owners:
            raise ConfigError(
                f"{key} = {getattr(config, key):g} is of {' and '.join(owners)}, and the optimizer is "
                f"{config.optimizer!r}: leave it out, or set optimizer to {owners[0]!r}"
            )
    if config.momentum_correction and config.optimizer != "lars":
        raise ConfigError(
            f"momentum_correction is of lars, whose momentum holds the learning rate, and that of {config.optimizer!r} "
            "does not: nothing is gathered at an old rate, so leave it out"
        )
    return Hyper(
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        decay_bias_norm=config.decay_bias_norm,
        beta2=config.beta2,
        correction=config.momentum_correction,
        **{key: getattr(config, key) for key in ("trust", "trust_limit") if getattr(config, key) is not None},
    )


def augment_of(config: TrainConfig, model: ModelSpec) -> Augment | Centre:
    height, width, _ = model.input.shape
    return Augment(model.input.pad, model.input.flip, height, width) if config.augment else Centre(height, width)
