"""Reports a finished run again if it is started again; its folder does not change."""

import sys
from dataclasses import fields

from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import read_run
from ringtrain.report.end_events import Ended
from ringtrain.report.screen import words
from ringtrain.report.screen.terminal import terminal
from ringtrain.storage.run_folder import outcome
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import length_of
from ringtrain.train.checkpoints.early_stop import EARLY_STOP, is_stale
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.transport.agree import on_root


def report_finished(run: Assembly, origin: Origin, after_death: bool) -> bool:
    """Whether the run is done, by its folder; rank 0 reports it then. Collective.

    A run that has saved its last checkpoint but not ended goes on, and so does one that has lost a rank.
    """
    folder, transport = origin.folder, run.transport
    if folder is None or not origin.continues or origin.facts is None or after_death:
        return False
    iterations = origin.facts["iteration"]
    if iterations != run.iterations and not is_stale(run.config.run, origin.facts["scalars"]):
        return False

    def look() -> bool:
        end = _end_of(folder, iterations)
        if end is None:
            return False
        screen, longer = terminal(sys.stdout), length_of(run.config.run, times=2)
        for line in filter(None, (words.finished(end, longer), *words.ended(end)[1:], words.folder_line(folder, None))):
            screen.show_line(line)
        screen.close()
        return True

    with transport.activity.holds_gil(f"reading the log of {folder}"):
        return on_root(transport, look)


def _end_of(folder: str, iterations: int) -> Ended | None:
    """The end of the run in this folder, if it is done after ``iterations`` and the log has every number of it: null
    stands for a lost one."""
    try:
        became, end = outcome.read_outcome(folder), read_run(folder, folder).end
    except UsageError:
        return None
    known = {each.name for each in fields(Ended)}
    values = {"exposed_share": 0.0} | {name: value for name, value in (end or {}).items() if name in known}
    done = (became.outcome, became.iteration, values.get("iterations")) == (outcome.DONE, iterations, iterations)
    if not done or values.get("reason") not in ("done", EARLY_STOP):
        return None
    scored = values["test_accuracy"] is None or values["test_loss"] is not None
    return Ended(**values) if scored and values["images_per_s"] is not None else None
