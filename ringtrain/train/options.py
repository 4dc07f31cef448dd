"""Reads the options of a run, which are its run file and its flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringtrain.config.record import TrainConfig
from ringtrain.config.resolve import FLAGS, read_run_file, resolve
from ringtrain.errors import ConfigError, RingtrainError

AUTO = "auto"
OWN_FILES = ("config.toml", "log.jsonl", "curves.png", "outcome.json", "checkpoints", ".lock")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """layers: (source, values); each layer wins over those before it
    config: the configuration of these layers alone, or their error. Ranks raise it together, in :meth:`checked`
    """

    layers: Sequence[tuple[str, dict]]
    config: TrainConfig | RingtrainError

    @property
    def elastic(self) -> str | None:
        """``--elastic``, which a rank needs before it meets the others: one of them may die in that meeting."""
        return self.config.exchange.elastic if isinstance(self.config, TrainConfig) else None

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint in run file or flags, even if the flags also say `auto`."""
        named = (checkpoint_in(values.get("resume")) for _, values in reversed(self.layers))
        return next(filter(None, named), None)

    def checked(self) -> TrainConfig:
        """The configuration. Raises the error of the options."""
        if isinstance(self.config, RingtrainError):
            raise self.config
        return self.config


def read_options(run_file: str | None, flags: Mapping) -> RunOptions:
    """Read the run file and lay the flags over it. Not collective; :meth:`RunOptions.checked` raises an error."""
    try:
        layers = [(f"run file {run_file}", _read(run_file))] if run_file else []
        layers.append((FLAGS, dict(flags)))
        return RunOptions(layers, resolve(*layers))
    except RingtrainError as error:
        return RunOptions((), error)


def checkpoint_in(resume: str | None) -> str | None:
    """The checkpoint of ``--resume``, or None."""
    return None if resume == AUTO else resume


def _read(run_file: str) -> dict:
    """Read a run file. It may come from another user: its trace must lie in the run folder."""
    values = read_run_file(run_file)
    trace = values.get("trace")
    if isinstance(trace, str) and (trace in (*OWN_FILES, "", ".", "..") or "/" in trace):
        raise ConfigError(
            f"run file {run_file}: trace is {trace!r}; it wants a bare name, of a file of its own in the run folder. "
            "--trace alone may name any file"
        )
    return values
