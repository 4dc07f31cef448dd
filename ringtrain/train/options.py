"""The options of a run: its run file and its flags, read once."""

from collections.abc import Sequence
from dataclasses import dataclass

from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import FLAGS, read_run_file, resolve
from ringtrain.errors import ConfigError, RingtrainError
from ringtrain.train import texts

AUTO = "auto"
OWN_FILES = ("config.toml", "log.jsonl", "curves.png", "outcome.json", "checkpoints", ".lock")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """layers:  (source, values); each layer wins over those before it
    config:  the configuration of these layers alone; None where they hold an error
    problem: that error. Ranks raise it together, in :meth:`checked`
    """

    layers: Sequence[tuple[str, dict]]
    config: TrainConfig | None
    problem: RingtrainError | None = None

    @property
    def elastic(self) -> str | None:
        """``--elastic``, which a rank must know before it meets the others: one of them may die in that. None where
        the options hold an error."""
        return self.config and self.config.elastic

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that run file or flags name, even where flags say `auto` besides."""
        named = (values.get("resume") for _, values in reversed(self.layers))
        return next(filter(is_checkpoint, named), None)

    def checked(self) -> "RunOptions":
        """These options. Raises their error."""
        if self.problem is not None:
            raise self.problem
        return self


def read_options(run_file: str | None, flags: dict) -> RunOptions:
    """Read the run file and lay the flags over it. Not collective; an error is kept for :meth:`RunOptions.checked`."""
    try:
        layers = [(f"run file {run_file}", _read(run_file))] if run_file else []
        layers.append((FLAGS, flags))
        return RunOptions(layers, resolve(*layers))
    except RingtrainError as error:
        return RunOptions((), None, error)


def is_checkpoint(resume: str | None) -> bool:
    """Whether ``--resume`` names a checkpoint."""
    return resume not in (None, AUTO)


def _read(run_file: str) -> dict:
    """A run file may come from anyone: its trace may be written to the run folder alone."""
    given = read_run_file(run_file)
    trace = given.get("trace")
    if isinstance(trace, str) and (trace in (*OWN_FILES, "", ".", "..") or "/" in trace):
        raise ConfigError(texts.TRACE_IN_RUN_FILE(run_file=run_file, trace=trace))
    return given
