"""Opens the run folder and the sinks on rank 0, and puts aside files that this run neither continues nor may
overwrite."""

import datetime
import sys
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from ringtrain.config.resolve import to_table
from ringtrain.report.events import KINDS, Event, Note
from ringtrain.report.screen.terminal import terminal
from ringtrain.report.sinks import JsonLines, Sink, SinkGroup, is_log, kinds_at
from ringtrain.report.tensorboard import TensorBoard
from ringtrain.storage.run_folder import run_folder
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.resume import Origin, config_of
from ringtrain.train.start.recovery_state import OutcomeWriter, RecoveryState
from ringtrain.transport.activity import Activity
from ringtrain.transport.agree import keep_on_root, on_root


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
    run: Assembly, origin: Origin, recovery: RecoveryState, remarks: list[str], stack: ExitStack
) -> tuple[OutcomeWriter, RunFolder | None, float | None]:
    """(the writer of the outcome, the folder on rank 0, the best accuracy of its checkpoints). All ranks know the
    folder before it holds a run: any rank may write the outcome, and survivors of a death go on in it. Adds notes for
    the user to ``remarks``. ``stack`` releases the folder: this process may claim it again. Collective."""
    transport = run.transport

    def make() -> tuple[RunFolder, str]:
        with transport.activity.during(f"making run folder {origin.folder or run_folder.RUNS}", limited=True):
            folder = run_folder.create_run_folder(
                origin.folder, run.model.name, datetime.datetime.now(), origin.continues
            )
            stack.callback(folder.release)
            remarks.extend(folder.claim(origin.continues))
            return folder, str(folder.path)

    folder, path = keep_on_root(transport, make)
    outcome = OutcomeWriter(Path(path), transport.rank == 0, run.iterations, transport.size, recovery.lost)
    recovery.folder, recovery.iterations, recovery.outcome = path, run.iterations, outcome
    # None if its file is in another folder, or of a later iteration
    best = on_root(transport, lambda: _begin(folder, run, origin, outcome, remarks))
    return outcome, folder, best


def _begin(
    folder: RunFolder, run: Assembly, origin: Origin, outcome: OutcomeWriter, remarks: list[str]
) -> float | None:
    """Write the first files of the run folder; the best accuracy of its checkpoints."""
    _clear(folder, origin, remarks)
    folder.root.write(folder.config, tomli_w.dumps(to_table(run.config)).encode())
    outcome.running(origin.iteration or 0)
    return folder.best_so_far()


def _clear(folder: RunFolder, origin: Origin, remarks: list[str]) -> None:
    """Put aside files that this run neither continues nor may overwrite."""
    if origin.iteration is not None and (aside := folder.supersede(origin.iteration)):
        remarks.append(f"put aside, of later iterations or damaged: {', '.join(path.name for path in aside)}")
    if wrong := config_of(folder)[1]:
        alone = "" if origin.config else ": this run uses only its own flags and run file"
        remarks.append(f"{wrong}{alone}; it is called {folder.root.put_aside(folder.config).name} now")
    if not (folder.root.is_plain(folder.log) and is_log(folder.log)):
        remarks.append(f"{folder.log} is no log of a run: it is called {folder.root.put_aside(folder.log).name} now")


def make_sinks(
    run: Assembly, folder: RunFolder | None, recovery: RecoveryState, resumed_at: int | None, due: bool
) -> list[Sink]:
    """The log, the scalars for TensorBoard if they are asked for, and the terminal; in this order, on rank 0."""
    if folder is None:
        return []
    if resumed_at is None and recovery.lost:  # the log goes on after a death
        resumed_at = 0
    activity, shown = run.transport.activity, terminal(sys.stdout)

    def warn(text: str) -> None:
        shown.handle(Note(text=text))

    with activity.during(f"opening {folder.log}", limited=True):
        kept: list[Sink] = [TimedSink(JsonLines(folder.log, resumed_at, warn, due), activity, f"writing {folder.log}")]
        if run.config.run.tensorboard:
            scalars = TensorBoard(folder.path, resumed_at or 0, warn)
            kept.append(TimedSink(scalars, activity, f"writing {scalars.path}"))
        if recovery.recoverable is not None and recovery.recoverable.finished:
            # what a dead rank 0 has not recorded of the last finished iteration
            logged = kinds_at(folder.log, recovery.recoverable.iteration)
            for event in recovery.recoverable.finished:
                if KINDS[type(event)] not in logged:
                    SinkGroup(kept).handle(event)
    return [*kept, shown]
