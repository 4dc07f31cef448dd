"""Works out the length, learning rate, hyperparameters and crops of a run from its configuration."""

from collections.abc import Sequence

from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import FLAGS
from ringtrain.data.batches.augment import Augment, CentreCrop, Uncropped
from ringtrain.data.batches.sampler import Sampler
from ringtrain.errors import ConfigError
from ringtrain.humanize import plural
from ringtrain.nn.losses import LOSSES
from ringtrain.nn.spec import IMAGE_EXTENTS, ModelSpec
from ringtrain.optim.lr import LearningRate, iterations_in, scaled
from ringtrain.optim.optimizers import Hyper
from ringtrain.train import texts

STEPPED = ("step", "multistep")  # policies that read lr_steps


def iterations_of(config: TrainConfig, sampler: Sampler) -> int:
    return config.iterations or (config.epochs or 0) * sampler.iterations_per_epoch


def rate_of(config: TrainConfig, iterations: int, per_epoch: int) -> LearningRate:
    """The learning rate of a run of ``iterations``, ``per_epoch`` of them an epoch."""
    scale = (lambda lr: scaled(lr, config.batch, config.base_batch)) if config.base_batch else float
    return LearningRate(
        lr=scale(config.lr),
        floor=scale(config.min_lr),
        policy=config.lr_policy,
        steps=tuple(iterations_in(step, per_epoch) for step in config.lr_steps),
        gamma=config.lr_gamma,
        power=config.lr_power,
        warmup=iterations_in(config.warmup, per_epoch),
        total=iterations,
        typed=config.lr_steps,
    )


def best_by_of(config: TrainConfig) -> str:
    """The figure of the test part by which scores are compared: the loss where a task has no accuracy. Raises
    ConfigError if such a task is asked for it."""
    counted = config.loss not in LOSSES or LOSSES[config.loss].accuracy
    if config.best_by == "accuracy" and not counted:
        raise ConfigError(texts.NO_ACCURACY(loss=config.loss))
    return config.best_by or ("accuracy" if counted else "loss")


def schedule_words(config: TrainConfig, rate: LearningRate) -> str:
    """The header's text on the rate: "cosine, warm-up 5 epochs = 785 iterations"."""
    words = [config.lr_policy]
    if config.lr_steps and config.lr_policy in STEPPED:
        steps = ", ".join(map(_span, config.lr_steps, rate.steps))
        text = texts.STEP_EVERY if config.lr_policy == "step" else texts.STEP_AT
        words = [text(policy=config.lr_policy, steps=steps)]
    if rate.floor:
        words.append(texts.FLOOR(floor=rate.floor))
    if config.warmup:
        words.append(texts.WARMUP(span=_span(config.warmup, rate.warmup)))
    return ", ".join(words)


def _span(given: int | str, iterations: int) -> str:
    counted = plural(iterations, "iteration")
    if isinstance(given, int):
        return counted
    count = given.removesuffix("ep")
    return (texts.EPOCH_SPAN if count == "1" else texts.EPOCHS_SPAN)(count=count, iterations=counted)


def schedule_notes(config: TrainConfig, rate: LearningRate) -> list[str]:
    """Notes on steps of the schedule that lie beyond the end of the run, or change nothing."""
    length = plural(rate.total, "iteration")
    notes = []
    if 0 < rate.total <= rate.warmup:
        span, reached = _span(config.warmup, rate.warmup), rate.at(rate.total - 1)
        notes.append(texts.SHORT_OF_WARMUP(span=span, length=length, reached=reached, lr=rate.lr))
    if config.lr_steps and config.lr_policy not in STEPPED:
        notes.append(texts.STEPS_UNUSED(owners=" and ".join(STEPPED), policy=config.lr_policy))
        return notes
    beyond = [_span(*pair) for pair in zip(config.lr_steps, rate.steps, strict=True) if pair[1] >= rate.total]
    if beyond:
        notes.append(texts.STEPS_BEYOND(steps=", ".join(beyond), length=length))
    return notes


def accumulate_notes(config: TrainConfig, examples: int, grain: int) -> list[str]:
    """Notes on ``--accumulate``. ``examples``: the most of a batch on one rank; ``grain``: those that stay together"""
    most = -(-examples // grain)
    if config.accumulate <= most:
        return []
    ghosts = texts.IN_GHOSTS(size=grain) if grain > 1 else ""
    own, count = plural(examples, "example"), plural(most, "micro-batch", "micro-batches")
    return [texts.FEW_MICRO_BATCHES(accumulate=config.accumulate, examples=own, ghosts=ghosts, count=count)]


def check_warmup(config: TrainConfig, rate: LearningRate, own: Sequence[tuple[str, dict]]) -> None:
    """Raise ConfigError if flags or run file (``own``, as :attr:`ringtrain.train.options.RunOptions.layers`) give a
    warm-up that lasts as long as the run. If a model's recipe does, a shorter run is a trial, and
    :func:`schedule_notes` has a note."""
    sources = [source for source, values in own if values.get("warmup") is not None]
    if not sources or rate.warmup < rate.total:
        return
    asked = texts.WARMUP_KEY(source=sources[-1], warmup=config.warmup)
    if sources[-1] == FLAGS:
        asked = texts.WARMUP_FLAG(warmup=config.warmup)
    given = {"length": length_of(config), "total": rate.total, "lr": rate.lr}
    raise ConfigError(texts.LONG_WARMUP(asked=asked, warmup=plural(rate.warmup, "iteration"), **given))


def length_of(config: TrainConfig, times: int = 1) -> str:
    """The flag that makes a run ``times`` as long as this one."""
    if config.iterations is not None:
        return texts.ITERATIONS(iterations=times * config.iterations)
    return texts.EPOCHS(epochs=times * (config.epochs or 0))


def hyper_of(config: TrainConfig) -> Hyper:
    return Hyper(
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        decay_bias_norm=config.decay_bias_norm,
        beta2=config.beta2,
        eps=config.eps,
        correction=config.momentum_correction,
        ema=config.ema,
        **{
            key: getattr(config, key)
            for key in ("trust_coefficient", "trust_limit")
            if getattr(config, key) is not None
        },
    )


def augment_of(config: TrainConfig, model: ModelSpec) -> Augment | CentreCrop | Uncropped:
    if len(model.input.shape) != IMAGE_EXTENTS:
        return Uncropped()
    height, width, _ = model.input.shape
    if not config.augment:
        return CentreCrop(height, width)
    pad = 0 if config.random_resized_crop is not None else model.input.pad  # that crop takes the place of the pad's
    return Augment(pad, model.input.flip, height, width)
