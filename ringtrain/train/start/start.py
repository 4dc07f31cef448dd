"""Trains from flags to a finished run, on every rank.

Rank 0 alone reads checkpoints, writes the run folder and prints. All ranks together find the errors of options and
files before the first iteration (:mod:`ringtrain.train.agree`).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain

from ringtrain.errors import Interrupted, RankLostError, RingtrainError, StalledError
from ringtrain.plugin import blamed
from ringtrain.report.end_events import Failed
from ringtrain.report.events import Compiled, Note
from ringtrain.report.plots import draw_curves, has_iterations
from ringtrain.report.screen.terminal import Terminal
from ringtrain.report.sinks import Sink, SinkGroup
from ringtrain.report.trace import path_of, write_trace
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.agree import on_root, take_turns, together
from ringtrain.train.assembly.assemble import Assembly, broadcast_array
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.state import Progress, restore
from ringtrain.train.options import RunOptions, read_options
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.train.run.rank_stats import forget_peak
from ringtrain.train.run.run import Run
from ringtrain.train.run.share_size import expected_note
from ringtrain.train.run.tracing import Tracer, window_of
from ringtrain.train.start.finished import report_finished
from ringtrain.train.start.header import header, notes
from ringtrain.train.start.open_run import OpenedRun, open_run
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.train.start.run_folder import make_folder, make_sinks
from ringtrain.train.stopping.reasons import check_stop
from ringtrain.train.stopping.signals import StopFlag, watching
from ringtrain.transport.activity import tell_none
from ringtrain.transport.base import Transport


def start(transport: Transport, run_file: str | None, flags: dict, stop: StopFlag | None = None) -> None:
    """Train as flags and run file say. Raises RingtrainError, the same on every rank if possible.

    stop: a flag that has recorded signals since the start of the process, or None
    """
    with watching() if stop is None else nullcontext(stop) as noted:
        run_training(transport, read_options(run_file, flags), noted)


def run_training(
    transport: Transport, options: RunOptions, stop: StopFlag, recovery: RecoveryState | None = None
) -> None:
    """Train as options say; the caller handles signals.

    recovery: the state that survives the death of a rank; None if the process makes several runs
    """
    only_run, recovery = recovery is not None, recovery or RecoveryState()
    forget_peak()
    opened = open_run(transport, options, stop, recovery, only_run)
    run, transport = opened.run, opened.run.transport  # from here on the guard watches collectives
    if report_finished(transport, run, opened.origin, recovery):
        run.close()
        return
    remarks = list(opened.remarks)
    outcome, folder = make_folder(transport, run, opened.origin, recovery, remarks)
    sinks = make_sinks(transport, folder, opened.origin, recovery, run.config.tensorboard)
    with _recorded_end(sinks, folder, run, stop, outcome) as sink:
        sink.handle(header(run, run.ops, transport, opened.origin, folder, opened.predicted))
        for text in (*remarks, *notes(run, transport, opened.origin)):
            sink.handle(Note(text=text))
        outcome.progress = _equal_weights(run, opened.origin)
        training = _make_run(opened, outcome.progress, sink, folder, stop, recovery)
        report = recovery.take_report()
        if report is not None:
            sink.handle(report)
        training.go()
        recovery.end()
    run.exchange.reducers.close()


def _make_run(
    opened: OpenedRun, progress: Progress, sink: Sink, folder: RunFolder | None, stop: StopFlag, recovery: RecoveryState
) -> Run:
    """Make the run ready for its first iteration. Collective."""
    run, origin, transport = opened.run, opened.origin, opened.run.transport
    origin.found = recovery.origin = None  # frees the checkpoint's arrays: the run has their values
    _prepare(run, sink, progress)
    if not recovery.unsaved:
        check_stop(transport, stop, origin.words)
    tracing = _tracing(run, transport, folder, progress)
    training = Run(run, progress, sink, folder, recovery.started, stop, opened.job_end, tracing, origin.due)
    recovery.begin(training)
    return training


@contextmanager
def _recorded_end(
    sinks: list[Sink], folder: RunFolder | None, run: Assembly, stop: StopFlag, outcome: OutcomeWriter
) -> Iterator[Sink]:
    """Yield the sink of a run. However the run ends: record the end, then close the sinks, the folder and the guard."""
    sink, drawn, activity = SinkGroup(sinks), folder, run.transport.activity  # drawn: the folder of the curves, or None
    activity.before_end = outcome.failed
    stop.before_end = outcome.failed
    try:
        yield sink
    except RankLostError:
        drawn = None  # survivors draw at their own end; without survivors the launcher ends all ranks now
        raise
    except RingtrainError as error:
        if not isinstance(error, Interrupted):  # the run has recorded an interruption itself
            with suppress(RingtrainError):  # the error may be that the log cannot be written
                sink.handle(Failed(error=type(error).__name__, text=str(error)))
        outcome.failed(error)
        if isinstance(error, (StalledError, Interrupted)):
            drawn = None  # no time for curves: the other ranks, or a scheduler, wait for this end
        raise
    except BaseException as error:
        outcome.failed(blamed(error) or error)
        raise
    finally:
        try:
            sink.close()
            _draw(drawn, sinks)
        finally:  # the process may make another run
            stop.before_end, activity.before_end = lambda error: None, tell_none
            if folder is not None:
                folder.release()
            if run.guard is not None:
                run.guard.close()


def _tracing(run: Assembly, transport: Transport, folder: RunFolder | None, progress: Progress) -> Tracer | None:
    """The tracer for ``--trace``, or None; collective. Creates the trace's file."""
    window = together(transport, lambda: window_of(run.config, progress.iteration))
    if run.config.trace is None:
        return None
    path = path_of(run.config.trace, folder.path) if folder else None
    on_root(transport, lambda: write_trace(path, {}))
    return Tracer(run.worker, transport, window, path)


def _draw(folder: RunFolder | None, sinks: list[Sink]) -> None:
    """Draw the curves, also of a failed run. The log is closed: only the terminal shows a note."""
    if folder is None or not has_iterations(folder.log):
        return
    problem = draw_curves(folder.path, folder.curves)
    note = f"note: no curves: {problem}" if problem else f"curves {folder.curves}"
    for sink in sinks:
        if isinstance(sink, Terminal):
            sink.show_line(note)


# ── the first iteration ───────────────────────────────────────────────────────────────────────────────────────
def _equal_weights(run: Assembly, origin: Origin) -> Progress:
    """Broadcast rank 0's weights, new or of the checkpoint, and compare the hashes of all ranks."""
    if origin.place is None:
        if not run.roles.parts:  # parts of the network are equal as they are drawn
            broadcast_array(run.transport, run.ops, run.arena.weights)
        progress = Progress()
    else:
        progress = restore(run, run.ops, run.transport, origin.place, origin.found.checkpoint if origin.found else None)
    run.replicas.check("at the start")
    return progress


def _prepare(run: Assembly, sink: Sink, progress: Progress) -> None:
    """Run one iteration without data before the first: memory is there then, and a device's kernels are compiled, whose
    time is recorded. Collective."""
    if progress.iteration >= run.iterations:
        return
    ops, transport = run.ops, run.transport
    before = ops.compile_stats()  # which counts former runs of this process too
    with run.batches(transport, 0, 1) as batches, transport.activity.during("preparing the first iteration"):
        batch = next(batches)
        seconds = take_turns(transport, lambda: rehearse(run, ops, batch), compiles=ops.records)
    compiled, loaded = (now - then for now, then in zip(ops.compile_stats(), before, strict=True))
    if compiled or loaded:
        sink.handle(Compiled(seconds=seconds, kernels=compiled))
    of_ops = dict.fromkeys(chain.from_iterable(transport.gather_json(ops.notes())))
    for text in filter(None, (*of_ops, expected_note(run))):
        sink.handle(Note(text=text))
