"""The data set's file, copied to each node's own disk before it is opened: what ``--stage`` asks for."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ringtrain.config import TrainConfig
from ringtrain.data.dataset import DIGITS
from ringtrain.data.nearby import folder_of, nearby
from ringtrain.errors import ConfigError, everywhere
from ringtrain.train.together import together_json
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Transport


@contextmanager
def staged(config: TrainConfig, transport: Transport) -> Iterator[TrainConfig]:
    """The configuration with the data set to open: as it is, or the copy on this rank's node. Collective. Raises
    ConfigError, DataError, on every rank."""
    if config.stage is None:
        _refuse_keeping(config)
        yield config
        return
    if config.synthetic:
        raise everywhere(
            ConfigError("--stage copies a data set's file, and --synthetic has none: leave one of them out")
        )
    with ExitStack() as kept:
        places = together_json(transport, lambda: _place(config, transport, kept))
        yield replace(config, data=dict(filter(None, places))[transport.node])


def _refuse_keeping(config: TrainConfig) -> None:
    if config.stage_keep:
        raise everywhere(ConfigError("--stage-keep is of a copy that --stage makes: give that, too, or leave it out"))


def _place(config: TrainConfig, transport: Transport, kept: ExitStack) -> list | None:
    """(node, where the copy is), of the one rank of a node that makes it."""
    if transport.local_rank != 0:
        return None
    source = DIGITS if config.data in (None, "digits") else Path(config.data)
    if not source.is_file():
        return [transport.node, str(source)]  # whoever opens it says what is wrong with that
    folder = folder_of(config.stage, os.environ)
    copy = _near(source, folder, bool(config.stage_keep), transport.activity)
    return [transport.node, str(kept.enter_context(copy))]


@contextmanager
def _near(source: Path, folder: Path, keep: bool, activity: Activity) -> Iterator[Path]:
    """The copy. Making it and leaving it are stages that may not stand still: other ranks wait, and a disk may hang."""
    copy = ExitStack()
    with activity.during(f"copying {source} to {folder}", limited=True):
        path = copy.enter_context(nearby(source, folder, keep, lambda *_: activity.renew()))
    try:
        yield path
    finally:
        with activity.during(f"leaving the copy of {source} in {folder}", limited=True):
            copy.close()
