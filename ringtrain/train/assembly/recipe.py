"""Works out the length, learning rate, hyperparameters and crops of a run from its configuration."""

from collections.abc import Sequence

from ringtrain.config.record import DataConfig, OptimizerConfig, RunConfig, TrainConfig
from ringtrain.config.resolve import FLAGS
from ringtrain.data.batches.augment import Augment
from ringtrain.data.batches.sampler import Sampler
from ringtrain.data.file.dataset import DataSet
from ringtrain.errors import ConfigError
from ringtrain.humanize import plural
from ringtrain.nn.losses import LOSSES
from ringtrain.nn.spec import IMAGE_EXTENTS, ModelSpec
from ringtrain.optim.lr import LearningRate, iterations_in

EARLY_STOP = "early stop"  # the reason in the last record
STEPPED = ("step", "multistep")  # policies that read lr_steps


def iterations_of(config: RunConfig, sampler: Sampler) -> int:
    return config.iterations or (config.epochs or 0) * sampler.iterations_per_epoch


def rate_of(config: TrainConfig, iterations: int, per_epoch: int) -> LearningRate:
    """The learning rate of a run of ``iterations``, ``per_epoch`` of them an epoch."""
    hyper, batch = config.optimizer, config.run.batch

    def scaled(lr: float) -> float:
        """k times the base batch, k times the rate. Source: Goyal et al. 2017, section 2.1"""
        return lr * batch / hyper.base_batch if hyper.base_batch else lr

    return LearningRate(
        lr=scaled(hyper.lr),
        floor=scaled(hyper.min_lr),
        policy=hyper.lr_policy,
        steps=tuple(iterations_in(step, per_epoch) for step in hyper.lr_steps),
        gamma=hyper.lr_gamma,
        power=hyper.lr_power,
        warmup=iterations_in(hyper.warmup, per_epoch),
        total=iterations,
        typed=hyper.lr_steps,
    )


def best_by_of(config: TrainConfig) -> str:
    """The figure of the test part by which scores are compared: the loss where a task has no accuracy. Raises
    ConfigError if such a task is asked for it."""
    counted = config.model.loss not in LOSSES or LOSSES[config.model.loss].accuracy
    if config.run.best_by == "accuracy" and not counted:
        raise ConfigError(
            f"--best-by accuracy needs a loss that counts correct answers; --loss {config.model.loss} does not: use "
            "--best-by loss"
        )
    return config.run.best_by or ("accuracy" if counted else "loss")


def check_early_stop(config: TrainConfig, data: DataSet) -> None:
    """Raise ConfigError if no evaluation can end the run, or evaluations lack the figure of ``--best-by``."""
    best_by_of(config)
    if config.run.early_stop is not None and data.test is None:
        raise ConfigError(
            f"--early-stop {config.run.early_stop} compares evaluations, and data {data.name} have no test part: "
            "leave it out, or make the data with one"
        )


def is_stale(config: RunConfig, since_best: int) -> bool:
    """Whether ``--early-stop`` ends a run after so many evaluations without a better one."""
    return config.early_stop is not None and since_best >= config.early_stop


def schedule_words(config: OptimizerConfig, rate: LearningRate) -> str:
    """The header's text on the rate: "cosine, warm-up 5 epochs = 785 iterations"."""
    words = [config.lr_policy]
    if config.base_batch:
        words.append(f"of --lr {config.lr:g} for a batch of --base-batch {config.base_batch}")
    if config.lr_steps and config.lr_policy in STEPPED:
        steps = ", ".join(map(_span, config.lr_steps, rate.steps))
        words = [f"{config.lr_policy} {'every' if config.lr_policy == 'step' else 'at'} {steps}"]
    if rate.floor:
        words.append(f"at least {rate.floor:g}")
    if config.warmup:
        words.append(f"warm-up {_span(config.warmup, rate.warmup)}")
    return ", ".join(words)


def _span(span: int | str, iterations: int) -> str:
    counted = plural(iterations, "iteration")
    if isinstance(span, int):
        return counted
    count = span.removesuffix("ep")
    return f"{count} epoch = {counted}" if count == "1" else f"{count} epochs = {counted}"


def schedule_notes(config: OptimizerConfig, rate: LearningRate) -> list[str]:
    """Notes on steps of the schedule that lie beyond the end of the run, or change nothing."""
    length = plural(rate.total, "iteration")
    notes = []
    if 0 < rate.total <= rate.warmup:
        span, reached = _span(config.warmup, rate.warmup), rate.at(rate.total - 1)
        notes.append(
            f"the run is over before its warm-up of {span}: it has {length}, and its rate comes to {reached:.3g} of "
            f"{rate.lr:g}. Give a shorter --warmup, or 0"
        )
    if config.lr_steps and config.lr_policy not in STEPPED:
        notes.append(
            f"--lr-steps changes nothing: it is of --lr-policy {' and '.join(STEPPED)}, and this is {config.lr_policy}"
        )
        return notes
    beyond = [_span(*pair) for pair in zip(config.lr_steps, rate.steps, strict=True) if pair[1] >= rate.total]
    if beyond:
        notes.append(f"--lr-steps {', '.join(beyond)}: the rate does not drop there, as the run has {length}")
    return notes


def check_warmup(config: TrainConfig, rate: LearningRate, layers: Sequence[tuple[str, dict]]) -> None:
    """Raise ConfigError if flags or run file (``layers``, as :attr:`ringtrain.train.options.RunOptions.layers`) give a
    warm-up that lasts as long as the run. If a model's recipe does, a shorter run is a trial, and
    :func:`schedule_notes` has a note."""
    sources = [source for source, values in layers if values.get("warmup") is not None]
    if not sources or rate.warmup < rate.total:
        return
    asked = f"{sources[-1]}: warmup is {config.optimizer.warmup!r}"
    if sources[-1] == FLAGS:
        asked = f"--warmup {config.optimizer.warmup}"
    raise ConfigError(
        f"{asked}: a warm-up of {plural(rate.warmup, 'iteration')} lasts as long as the run or longer, which has "
        f"{rate.total:,} ({length_of(config.run)}): the rate would not come to {rate.lr:g}. Give a shorter warm-up, or "
        "a longer run"
    )


def length_of(config: RunConfig, times: int = 1) -> str:
    """The flag that makes a run ``times`` as long as this one."""
    if config.iterations is not None:
        return f"--iterations {times * config.iterations}"
    return f"--epochs {times * (config.epochs or 0)}"


def augment_of(config: DataConfig, model: ModelSpec) -> Augment | None:
    if len(model.input.shape) != IMAGE_EXTENTS:
        return None
    height, width, _ = model.input.shape
    if not config.augment:
        return Augment(0, False, height, width, centre=True)
    pad = 0 if config.random_resized_crop is not None else model.input.pad  # that crop takes the place of the pad's
    return Augment(pad, model.input.flip, height, width)
