"""Reports a finished run again if it is started again; its folder does not change."""

import sys
from dataclasses import fields

from ringtrain.config.record import TrainConfig
from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.end_events import Ended
from ringtrain.report.screen import words
from ringtrain.report.screen.terminal import terminal
from ringtrain.storage.run_folder import outcome
from ringtrain.train.agree import on_root
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import length_of
from ringtrain.train.checkpoints.early_stop import EARLY_STOP, is_stale
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.transport.base import Transport


def report_finished(transport: Transport, run: Assembly, origin: Origin, recovery: RecoveryState) -> bool:
    """Whether the run is done, by its folder; rank 0 reports it then. Collective.

    A run that has saved its last checkpoint but not ended goes on, and so does one that has lost a rank.
    """
    folder = origin.folder
    if folder is None or not origin.continues or origin.place is None or recovery.lost:
        return False
    stale, iterations = is_stale(run.config, origin.place["scalars"]), origin.place["iteration"]
    if iterations != run.iterations and not stale:
        return False

    def look() -> bool:
        end = _end_of(folder, iterations)
        if end is not None:
            _report(end, folder, run.config)
        return end is not None

    with transport.activity.holds_gil(f"reading the log of {folder}"):
        return on_root(transport, look)


def _end_of(folder: str, iterations: int) -> Ended | None:
    """The end of the run in this folder, if it is done after ``iterations``."""
    try:
        became, end = outcome.read_outcome(folder), read_run(folder, folder).end
    except UsageError:
        return None
    known = {each.name for each in fields(Ended)}
    found = {"exposed_share": 0.0} | {name: value for name, value in (end or {}).items() if name in known}
    done = (became.outcome, became.iteration, found.get("iterations"))
    ended = found.get("reason") in ("done", EARLY_STOP)
    if done != (outcome.DONE, iterations, iterations) or not ended or not _is_whole(found):
        return None
    return Ended(**found)


def _is_whole(found: dict) -> bool:
    """Whether the log has every number: null stands for a lost one."""
    scored = found["test_accuracy"] is None or found["test_loss"] is not None
    return scored and found["images_per_s"] is not None


def _report(end: Ended, folder: str, config: TrainConfig) -> None:
    screen, longer = terminal(sys.stdout), length_of(config, times=2)
    for line in filter(None, (words.finished(end, longer), *words.ended(end)[1:], words.folder_line(folder, None))):
        screen.show_line(line)
    screen.close()
