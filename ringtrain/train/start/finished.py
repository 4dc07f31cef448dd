"""Reports a finished run again, where it is asked to go on; its folder stays as it is."""

import sys
from dataclasses import fields

from ringtrain.config.record import TrainConfig
from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.events import Ended
from ringtrain.report.screen import words
from ringtrain.report.screen.terminal import terminal
from ringtrain.storage.run_folder import outcome
from ringtrain.train import texts
from ringtrain.train.agree import on_root
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.transport.base import Transport


def report_finished(transport: Transport, run: Assembly, origin: Origin, recovery: RecoveryState) -> bool:
    """Whether the run is done, as its folder says; rank 0 reports it then. Collective.

    One whose last checkpoint lies there, and that did not come to its end, goes on; as does one that has lost a rank.
    """
    if not origin.continues or origin.iteration != run.iterations or recovery.lost:
        return False

    def look() -> bool:
        end = _end_of(origin.folder, run.iterations)
        if end is not None:
            _tell(end, origin.folder, run.config)
        return end is not None

    with transport.activity.holds_gil(f"reading the log of {origin.folder}"):
        return on_root(transport, look)


def _end_of(folder: str, iterations: int) -> Ended | None:
    """Of the run in that folder, where it is done after so many iterations."""
    try:
        became, end = outcome.read_outcome(folder), read_run(folder, folder).end
    except UsageError:
        return None
    known = {each.name for each in fields(Ended)}
    found = {"exposed_share": 0.0} | {name: value for name, value in (end or {}).items() if name in known}
    done = (became.outcome, became.iterations, found.get("reason"), found.get("iterations"))
    if done != (outcome.DONE, iterations, "done", iterations) or not _is_whole(found):
        return None
    return Ended(**found)


def _is_whole(found: dict) -> bool:
    """A log may have lost a number: null stands for it."""
    scored = found["test_accuracy"] is None or found["test_loss"] is not None
    return scored and found["images_per_s"] is not None


def _tell(end: Ended, folder: str, config: TrainConfig) -> None:
    epochs, iterations = config.epochs, config.iterations
    longer = texts.EPOCHS(epochs=2 * epochs) if epochs else texts.ITERATIONS(iterations=2 * iterations)
    shown = terminal(sys.stdout)
    for line in (words.finished(end, longer), *words.ended(end)[1:], words.folder_line(folder, None)):
        shown.show_line(line)
    shown.close()
