"""Opens the run folder and the sinks on rank 0, and puts aside files that this run neither continues nor may
overwrite."""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from ringtrain.config.resolve import to_table
from ringtrain.report.events import KINDS, Event, Note
from ringtrain.report.screen.terminal import terminal
from ringtrain.report.sinks import JsonLines, Sink, is_log, kinds_at
from ringtrain.report.tensorboard import TensorBoard
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.agree import on_root
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin, config_of
from ringtrain.train.checkpoints.saving import RecoverableState
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.transport.activity import Activity
from ringtrain.transport.base import Transport


class TimedSink(Sink):
    """A sink under a deadline. ``doing``: "writing runs/first/log.jsonl"."""

    def __init__(self, inner: Sink, activity: Activity, doing: str):
        self._inner, self._activity, self._doing = inner, activity, doing

    def handle(self, event: Event) -> None:
        with self._activity.during(self._doing, limited=True):
            self._inner.handle(event)

    def close(self) -> None:
        with self._activity.during(self._doing, limited=True):
            self._inner.close()


def make_folder(
    transport: Transport, run: Assembly, origin: Origin, recovery: RecoveryState, remarks: list[str]
) -> tuple[OutcomeWriter, RunFolder | None]:
    """(the writer of the outcome, the folder on rank 0). All ranks know the folder before it holds a run: any rank may
    write the outcome, and survivors of a death go on in it. Adds notes for the user to ``remarks``. At an error the
    folder is released: this process may claim it again. Collective."""
    made: list[RunFolder] = []

    def make() -> str:
        with transport.activity.during(f"making run folder {origin.folder or run_folder.RUNS}", limited=True):
            folder = run_folder.create_run_folder(
                origin.folder, run.model.name, datetime.datetime.now(), origin.continues
            )
            made.append(folder)
            remarks.extend(folder.claim(origin.continues))
            return str(folder.path)

    try:
        folder = on_root(transport, make)
        recovery.folder, recovery.iterations = folder, run.iterations
        outcome = OutcomeWriter(Path(folder), transport.rank == 0, run.iterations, transport.size, recovery.lost)
        recovery.outcome = outcome
        best = on_root(transport, lambda: _begin(made[0], run, origin, outcome, remarks))
    except BaseException:
        for each in made:
            each.release()
        raise
    if origin.place is not None:
        origin.place["best"] = best  # None if its file is in another folder, or of a later iteration
    return outcome, made[0] if made else None


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
    if origin.iteration is not None and (aside := folder.supersede(origin.iteration)):
        remarks.append(f"put aside, of later iterations or damaged: {', '.join(path.name for path in aside)}")
    if wrong := config_of(folder)[1]:
        alone = "" if origin.config else ": this run uses only its own flags and run file"
        remarks.append(f"{wrong}{alone}; it is called {folder.root.put_aside(folder.config).name} now")
    if not is_log(folder.log):
        remarks.append(f"{folder.log} is no log of a run: it is called {folder.root.put_aside(folder.log).name} now")


def make_sinks(
    transport: Transport, folder: RunFolder | None, origin: Origin, recovery: RecoveryState, tensorboard: bool = False
) -> list[Sink]:
    """The log, the scalars for TensorBoard if they are asked for, and the terminal; in this order, on rank 0."""
    if folder is None:
        return []
    resumed_at = 0 if origin.iteration is None and recovery.lost else origin.iteration  # the log goes on after a death
    shown = terminal(sys.stdout)

    def warn(text: str) -> None:
        shown.handle(Note(text=text))

    with transport.activity.during(f"opening {folder.log}", limited=True):
        log = JsonLines(folder.log, resumed_at, warn, origin.due)
        kept: list[Sink] = [TimedSink(log, transport.activity, f"writing {folder.log}")]
        if tensorboard:
            scalars = TensorBoard(folder.path, resumed_at or 0, warn)
            kept.append(TimedSink(scalars, transport.activity, f"writing {scalars.path}"))
        _complete(kept, folder, recovery.recoverable)
    return [*kept, shown]


def _complete(sinks: Sequence[Sink], folder: RunFolder, recoverable: RecoverableState | None) -> None:
    """Record what a dead rank 0 has not of the last finished iteration."""
    if recoverable is None or not recoverable.finished:
        return
    logged = kinds_at(folder.log, recoverable.iteration)
    for event in recoverable.finished:
        if KINDS[type(event)] not in logged:
            for sink in sinks:
                sink.handle(event)
