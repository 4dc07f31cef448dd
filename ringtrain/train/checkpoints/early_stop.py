"""``--early-stop``: the end of a run whose evaluations no longer get better."""

from ringtrain.config.record import RunConfig, TrainConfig
from ringtrain.data.file.dataset import DataSet
from ringtrain.errors import ConfigError
from ringtrain.humanize import plural
from ringtrain.train.assembly.recipe import best_by_of
from ringtrain.train.checkpoints.state import SINCE_BEST, Progress

EARLY_STOP = "early stop"  # the reason in the last record


def check_early_stop(config: TrainConfig, data: DataSet) -> None:
    """Raise ConfigError if no evaluation can end the run, or evaluations lack the figure of ``--best-by``."""
    best_by_of(config)
    if config.run.early_stop is not None and data.test is None:
        raise ConfigError(
            f"--early-stop {config.run.early_stop} compares evaluations, and data {data.name} have no test part: "
            "leave it out, or make the data with one"
        )


def is_stale(config: RunConfig, scalars: dict) -> bool:
    """Whether the run of a checkpoint with these scalars has ended by this limit."""
    return config.early_stop is not None and scalars.get(SINCE_BEST, 0) >= config.early_stop


def early_stop_note(config: TrainConfig, progress: Progress) -> str:
    count = plural(progress.since_best, "evaluation")
    return f"--early-stop: no test {best_by_of(config)} better than {progress.best:.4f} in {count}"
