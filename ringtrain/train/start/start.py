"""Trains from flags to a finished run, on every rank.

Rank 0 alone reads checkpoints, writes the run folder and speaks. Whatever can be wrong is found before the first
iteration, by all ranks together (:mod:`ringtrain.train.agree`).
"""

from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain

from ringtrain.errors import Interrupted, RankLostError, RingtrainError, StalledError
from ringtrain.ops.base import Ops
from ringtrain.report.events import Compiled, Failed, Note
from ringtrain.report.plots import draw_curves, has_iterations
from ringtrain.report.sinks import Sink, SinkGroup
from ringtrain.report.trace import write_trace
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train import texts
from ringtrain.train.agree import on_root, take_turns, together
from ringtrain.train.assembly.assemble import Assembly, spread_from_root
from ringtrain.train.checkpoints.outcome_file import OutcomeWriter
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.state import Progress, restore
from ringtrain.train.options import RunOptions, read_options
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.train.run.rank_stats import forget_peak
from ringtrain.train.run.run import Run
from ringtrain.train.run.tracing import Tracer, path_of, window_of
from ringtrain.train.start.finished import report_finished
from ringtrain.train.start.header import header, notes
from ringtrain.train.start.open_run import OpenedRun, open_run
from ringtrain.train.start.recovery_state import RecoveryState
from ringtrain.train.start.run_folder import make_folder, make_sinks
from ringtrain.train.stopping.reasons import check_stop
from ringtrain.train.stopping.signals import StopFlag, nothing, watching
from ringtrain.transport.activity import tell_none
from ringtrain.transport.base import Transport


def start(transport: Transport, run_file: str | None, flags: dict, stop: StopFlag | None = None) -> None:
    """Train as flags and run file say. Raises RingtrainError, on every rank alike wherever that is possible.

    stop: a flag that has noted signals since the process began, if there is one
    """
    with watching() if stop is None else nullcontext(stop) as noted:
        train(transport, read_options(run_file, flags), noted)


def train(transport: Transport, options: RunOptions, stop: StopFlag, recovery: RecoveryState | None = None) -> None:
    """Train as the options say, while the caller watches signals.

    recovery: the state of this process's only run; None where the process makes other runs too
    """
    alone, recovery = recovery is not None, recovery or RecoveryState()
    forget_peak()
    opened = open_run(transport, options, stop, recovery, alone)
    run, transport = opened.run, opened.run.transport  # from here on what ranks do together is watched
    if report_finished(transport, run, opened.origin, recovery):
        _close(run)
        return
    remarks = list(opened.remarks)
    folder = make_folder(transport, run, opened.origin, recovery, remarks)
    sinks = make_sinks(transport, folder, opened.origin, recovery)
    with _ended(sinks, folder, run, stop, recovery.outcome) as sink:
        sink.handle(header(run, opened.ops, transport, opened.origin, folder))
        for text in (*remarks, *notes(run, transport, opened.origin)):
            sink.handle(Note(text=text))
        training = _prepared(opened, transport, sink, folder, stop, recovery)
        if recovery.ranks_lost is not None:
            sink.handle(recovery.take_report())
        training.go()
        recovery.end()
    run.exchange.reducers.close()


def _close(run: Assembly) -> None:
    """Of a run that was not begun; collective."""
    run.exchange.reducers.close()
    if run.guard is not None:
        run.guard.close()


def _prepared(
    opened: OpenedRun, transport: Transport, sink: Sink, folder, stop: StopFlag, recovery: RecoveryState
) -> Run:
    """Make the run ready for its first iteration. Collective."""
    run, ops, origin = opened.run, opened.ops, opened.origin
    recovery.outcome.progress = progress = _first_weights(run, ops, transport, origin)
    origin.found = recovery.origin = None  # its state is the run's own now, and is not kept besides for a whole run
    _prepare(run, ops, transport, sink, progress)
    if not recovery.unsaved:
        check_stop(transport, stop, origin.words)
    tracing = _tracing(run, transport, folder, progress)
    due = origin.place is not None and origin.place.get("due", False)
    training = Run(run, ops, transport, progress, sink, folder, recovery.started, stop, opened.end, tracing, due)
    recovery.begin(training)
    return training


@contextmanager
def _ended(sinks: list[Sink], folder: RunFolder | None, run: Assembly, stop: StopFlag, outcome: OutcomeWriter):
    """The sink of a run. At any end: records it, then closes all that the run opened."""
    sink, drawn, activity = SinkGroup(sinks), folder, run.transport.activity
    activity.before_end = outcome.failed
    stop.before_end = partial(outcome.failed, KeyboardInterrupt(texts.SECOND_CTRL_C()))
    try:
        yield sink
    except RankLostError:
        drawn = None  # the others go on, and draw at their end; or all are about to be ended
        raise
    except RingtrainError as error:
        _tell_failure(sink, error)
        outcome.failed(error)
        if isinstance(error, (StalledError, Interrupted)):
            drawn = None  # no time for curves: the other ranks wait for the end of this one, or a scheduler does
        raise
    except BaseException as error:
        outcome.failed(error)
        raise
    finally:
        try:
            sink.close()
            _draw(drawn, sinks)
        finally:  # a run that comes after this one in the same process finds nothing of it
            stop.before_end, activity.before_end = nothing, tell_none
            if folder is not None:
                folder.release()
            if run.guard is not None:
                run.guard.close()


def _tell_failure(sink: Sink, error: RingtrainError) -> None:
    """For the log; one that cannot be written may be the very error."""
    if not isinstance(error, Interrupted):  # which has told of its end
        with suppress(RingtrainError):
            sink.handle(Failed(error=type(error).__name__, text=str(error)))


def _tracing(run: Assembly, transport: Transport, folder: RunFolder | None, progress: Progress) -> Tracer | None:
    """The tracer for ``--trace``, or None; collective. Creates the trace's file."""
    first, stop = together(transport, lambda: window_of(run.config, progress.iteration))
    if run.config.trace is None:
        return None
    path = path_of(run.config, folder.path) if folder else None
    on_root(transport, lambda: write_trace(path, {}))
    return Tracer(run.worker, transport, first, stop, path)


def _draw(folder: RunFolder | None, sinks: list[Sink]) -> None:
    """Draw the curves, of a failed run too. The log is closed: only the terminal, the last sink, has a note."""
    if folder is None or not has_iterations(folder.log):
        return
    problem = draw_curves(folder.log, folder.curves)
    sinks[-1].show_line(texts.NO_CURVES(problem=problem) if problem else texts.CURVES(path=folder.curves))


# ── the first iteration ───────────────────────────────────────────────────────────────────────────────────────
def _first_weights(run: Assembly, ops: Ops, transport: Transport, origin: Origin) -> Progress:
    """The same weights everywhere: rank 0's, drawn or read, are broadcast, and compared by hash."""
    if origin.place is None:
        spread_from_root(transport, ops, run.arena.weights)
        progress = Progress()
    else:
        progress = restore(run, ops, transport, origin.place, origin.found and origin.found.checkpoint)
    run.replicas.check(texts.AT_START())
    return progress


def _prepare(run: Assembly, ops: Ops, transport: Transport, sink: Sink, progress: Progress) -> None:
    """Compile kernels before the first iteration, and say how long that took."""
    if progress.iteration >= run.iterations:
        return
    before = ops.compile_stats()  # in this process, of runs that came before this one too
    with run.batches(transport, 0, 1) as batches, transport.activity.during("compiling kernels"):
        batch = next(batches)
        seconds = take_turns(transport, lambda: rehearse(run, ops, batch))
    compiled, loaded = (now - then for now, then in zip(ops.compile_stats(), before, strict=True))
    if compiled or loaded:
        sink.handle(Compiled(seconds=seconds, kernels=compiled))
    for text in dict.fromkeys(chain.from_iterable(transport.gather_json(ops.notes()))):
        sink.handle(Note(text=text))
