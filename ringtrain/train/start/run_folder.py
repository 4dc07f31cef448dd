"""The run folder and the sinks, which are rank 0's: opened, and cleared of what this run neither goes on with nor
should write over."""

import datetime
import sys
from pathlib import Path

import tomli_w

from ringtrain.config.resolve import to_table
from ringtrain.report.events import Event, Note
from ringtrain.report.screen.terminal import terminal
from ringtrain.report.sinks import JsonLines, Sink, is_log, last_iteration
from ringtrain.storage import files
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train import texts
from ringtrain.train.agree import on_root
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin, config_of
from ringtrain.train.checkpoints.saving import RecoverableState
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Transport


class TimedSink(Sink):
    """``what`` it does: "writing runs/first/log.jsonl"."""

    def __init__(self, inner: Sink, activity: Activity, what: str):
        self._inner, self._activity, self._what = inner, activity, what

    def handle(self, event: Event) -> None:
        with self._activity.during(self._what, limited=True):
            self._inner.handle(event)

    def close(self) -> None:
        with self._activity.during(self._what, limited=True):
            self._inner.close()


def make_folder(
    transport: Transport, run: Assembly, origin: Origin, recovery: RecoveryState, remarks
) -> RunFolder | None:
    """The folder, on rank 0. All ranks know of it before it holds a run: what the run comes to will be written there by
    whoever knows it, and survivors of a death go on in it. What the user should know of it is added to ``remarks``.
    Where ranks do not come so far, the folder is given back: this process may be the next to claim it."""
    made: list[RunFolder] = []
    try:
        return _made(transport, run, origin, recovery, remarks, made)
    except BaseException:
        for folder in made:
            folder.release()
        raise


def _made(
    transport: Transport, run: Assembly, origin: Origin, recovery: RecoveryState, remarks, made: list[RunFolder]
) -> RunFolder | None:
    """``made``: where it is kept, as soon as there is one."""

    def make() -> str:
        with transport.activity.during(f"making run folder {origin.folder or run_folder.RUNS}", limited=True):
            folder = run_folder.create_run_folder(
                origin.folder, run.model.name, datetime.datetime.now(), origin.continues
            )
            made.append(folder)
            remarks.extend(folder.claim(origin.continues))
            return str(folder.path)

    recovery.folder, recovery.iterations = on_root(transport, make), run.iterations
    recovery.outcome = OutcomeWriter(
        Path(recovery.folder), transport.rank == 0, run.iterations, transport.size, recovery.lost
    )
    best = on_root(transport, lambda: _begin(made[0], run, origin, recovery.outcome, remarks))
    if origin.place is not None:
        origin.place["best"] = best  # None where its file is in another folder, or was of a later iteration
    return made[0] if made else None


def _begin(
    folder: RunFolder, run: Assembly, origin: Origin, outcome: OutcomeWriter, remarks: list[str]
) -> float | None:
    """Write the first files of the run folder; the best accuracy of its checkpoints."""
    _clear(folder, origin, remarks)
    folder.write_text(folder.config, tomli_w.dumps(to_table(run.config)))
    outcome.running(origin.iteration or 0)
    return folder.best_so_far()


def _clear(folder: RunFolder, origin: Origin, remarks: list[str]) -> None:
    """Put aside files that this run neither continues nor may overwrite."""
    if origin.place is not None and (aside := folder.supersede(origin.iteration)):
        remarks.append(texts.PUT_ASIDE(names=", ".join(path.name for path in aside)))
    if wrong := config_of(folder)[1]:
        alone = "" if origin.config else texts.STARTS_ALONE()
        remarks.append(texts.NO_CONFIG(problem=wrong, alone=alone, name=files.put_aside(folder.config).name))
    if not is_log(folder.log):
        remarks.append(texts.NO_LOG(path=folder.log, name=files.put_aside(folder.log).name))


def make_sinks(transport: Transport, folder: RunFolder | None, origin: Origin, recovery: RecoveryState) -> list[Sink]:
    """The log and the terminal, in that order."""
    if transport.rank != 0:
        return []
    resumed_at = 0 if origin.iteration is None and recovery.lost else origin.iteration  # the log goes on after a death
    again = origin.place is not None and origin.place.get("due", False)
    shown = terminal(sys.stdout)
    with transport.activity.during(f"opening {folder.log}", limited=True):
        log = JsonLines(folder.log, resumed_at, lambda text: shown.handle(Note(text=text)), again)
        _complete(log, folder, recovery.recoverable)
    return [TimedSink(log, transport.activity, f"writing {folder.log}"), shown]


def _complete(log: JsonLines, folder: RunFolder, recoverable: RecoverableState | None) -> None:
    """A rank 0 that died may have finished an iteration with the others, and not have written so."""
    finished = recoverable and recoverable.finished
    if finished and last_iteration(folder.log) < finished.iteration:
        log.handle(finished)
