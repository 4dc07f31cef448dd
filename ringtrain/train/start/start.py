"""Trains from flags to a finished run, on every rank.

Rank 0 alone reads checkpoints, writes the run folder and prints. All ranks together find the errors of options and
files before the first iteration (:mod:`ringtrain.transport.agree`).
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain

from ringtrain.errors import Interrupted, RankLostError, RingtrainError, StalledError, UsageError
from ringtrain.plugin import blamed
from ringtrain.report.events import Compiled, Failed, Note
from ringtrain.report.plots import draw_curves, has_iterations
from ringtrain.report.screen import words
from ringtrain.report.screen.terminal import Terminal, terminal
from ringtrain.report.sinks import Sink, SinkGroup
from ringtrain.report.trace import path_of, write_trace
from ringtrain.storage.run_folder import outcome as outcomes
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.assembly.assemble import Assembly, broadcast_array
from ringtrain.train.assembly.recipe import is_stale, length_of
from ringtrain.train.checkpoints.resume import Origin
from ringtrain.train.checkpoints.state import SINCE_BEST, Progress, restore
from ringtrain.train.options import RunOptions
from ringtrain.train.run.memory_trial import rehearse
from ringtrain.train.run.records import forget_peak
from ringtrain.train.run.run import Run
from ringtrain.train.run.tracing import Tracer, window_of
from ringtrain.train.start.header import header, notes
from ringtrain.train.start.open_run import open_run
from ringtrain.train.start.recovery_state import OutcomeWriter, RecoveryState
from ringtrain.train.start.run_folder import make_folder, make_sinks
from ringtrain.train.stopping.reasons import check_stop
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.activity import tell_none
from ringtrain.transport.agree import on_root, take_turns, together
from ringtrain.transport.base import Transport


def run_training(
    transport: Transport, options: RunOptions, stop: StopFlag, recovery: RecoveryState | None = None
) -> None:
    """Train as options say, unless the folder says that the run is done; the caller handles signals. Collective; raises
    RingtrainError, the same on every rank if possible.

    recovery: the state that survives the death of a rank; None if the process makes several runs

    ====================================  =============================================================
    step                                  what remains if it, or a later one, fails
    ====================================  =============================================================
    options, data, device, network        no file has changed
    folder and lock, ``config.toml``      a free lock; ``outcome.json`` has the error, but for a death
    log and terminal                      the log has the error, too, and the run folder has its curves
    weights, first kernels, iterations    the same; a checkpoint if the run was told to stop
    ====================================  =============================================================
    """
    forget_peak()
    only_run, recovery = recovery is not None, recovery or RecoveryState()
    run, origin, job_end, remarks = open_run(transport, options, stop, recovery, only_run)
    transport = run.transport
    if _report_finished(run, origin, bool(recovery.lost)):
        run.close()
        return
    with ExitStack() as stack:
        if run.guard is not None:
            stack.callback(run.guard.close)
        outcome, folder, best = make_folder(run, origin, recovery, remarks, stack)
        if origin.facts is not None:
            origin = replace(origin, facts={**origin.facts, "best": best})
        sink = stack.enter_context(_recorded_end(run, folder, stop, outcome, recovery, (origin.iteration, origin.due)))
        sink.handle(header(run, origin, folder))
        for text in (*remarks, *notes(run, origin)):
            sink.handle(Note(text=text))
        outcome.progress = progress = _equal_weights(run, origin)
        state, due = origin.words, origin.due
        del origin  # frees the checkpoint's arrays: the run has their values
        recovery.origin = None
        _prepare(run, sink, progress)
        if not recovery.unsaved:
            check_stop(transport, stop, state)
        tracing = _tracing(run, folder, progress)
        training = Run(run, progress, sink, folder, recovery.started, stop, job_end, tracing, due)
        recovery.training, recovery.recoverable = training, None  # in place of the state from the last world
        report = recovery.take_report()
        if report is not None:
            sink.handle(report)
        training.go()
        recovery.end()
    run.exchange.reducers.close()


@contextmanager
def _recorded_end(
    run: Assembly,
    folder: RunFolder | None,
    stop: StopFlag,
    outcome: OutcomeWriter,
    recovery: RecoveryState,
    resumed: tuple[int | None, bool],
) -> Iterator[Sink]:
    """Yield the sink of a run. However the run ends: record the end, then close the sinks and draw the curves.
    ``resumed``: the iteration at which the run is resumed, and whether it is due, as of :class:`Origin`."""
    sinks: list[Sink] = []
    drawn, activity = folder, run.transport.activity  # drawn: the folder of the curves, or None
    activity.before_end = stop.before_end = outcome.failed
    try:
        sinks += make_sinks(run, folder, recovery, *resumed)
        yield SinkGroup(sinks)
    except RankLostError:
        drawn = None  # survivors draw at their own end; without survivors the launcher ends all ranks now
        raise
    except RingtrainError as error:
        if not isinstance(error, Interrupted):  # the run has recorded an interruption itself
            with suppress(RingtrainError):  # the error may be that the log cannot be written
                SinkGroup(sinks).handle(Failed(error=type(error).__name__, text=str(error)))
        outcome.failed(error)
        if isinstance(error, (StalledError, Interrupted)):
            drawn = None  # no time for curves: the other ranks, or a scheduler, wait for this end
        raise
    except BaseException as error:
        outcome.failed(blamed(error) or error)
        raise
    finally:
        try:
            SinkGroup(sinks).close()
            _draw(drawn, sinks)
        finally:  # the process may make another run
            stop.before_end, activity.before_end = lambda error: None, tell_none


def _tracing(run: Assembly, folder: RunFolder | None, progress: Progress) -> Tracer | None:
    """The tracer for ``--trace``, or None; collective. Creates the trace's file."""
    window = together(run.transport, lambda: window_of(run.config.run, progress.iteration))
    if run.config.run.trace is None:
        return None
    path = path_of(run.config.run.trace, folder.path) if folder else None
    on_root(run.transport, lambda: write_trace(path, {}))
    return Tracer(run.worker, run.transport, window, path)


def _draw(folder: RunFolder | None, sinks: list[Sink]) -> None:
    """Draw the curves, also of a failed run. The log is closed: only the terminal shows a note."""
    if folder is None or not has_iterations(folder.log):
        return
    problem = draw_curves(folder.path, folder.curves)
    note = f"note: no curves: {problem}" if problem else f"curves {folder.curves}"
    for sink in sinks:
        if isinstance(sink, Terminal):
            sink.show_line(note)


def _equal_weights(run: Assembly, origin: Origin) -> Progress:
    """Broadcast rank 0's weights, new or of the checkpoint, and compare the hashes of all ranks."""
    progress = Progress()
    if origin.facts is not None:
        progress = restore(run, origin.facts, origin.stored.checkpoint if origin.stored else None)
    elif not run.roles.parts:  # parts of the network are equal as they are drawn
        broadcast_array(run.transport, run.ops, run.arena.weights)
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
    for text in dict.fromkeys(chain.from_iterable(transport.gather_json(ops.notes()))):
        sink.handle(Note(text=text))


def _report_finished(run: Assembly, origin: Origin, after_death: bool) -> bool:
    """Whether the run is done, by its folder, which does not change; rank 0 reports it then. Collective.

    A run that has saved its last checkpoint but not ended goes on, and so does one that has lost a rank.
    """
    folder, transport = origin.folder, run.transport
    if folder is None or not origin.continues or origin.facts is None or after_death:
        return False
    iterations = origin.facts["iteration"]
    since_best = origin.facts["scalars"].get(SINCE_BEST, 0)
    stale = is_stale(run.config.run, since_best)
    if iterations != run.iterations and not stale:
        return False

    def look() -> bool:
        try:
            end = outcomes.read_outcome(folder)
        except UsageError:
            return False
        if (end.outcome, end.iteration) != (outcomes.DONE, iterations):
            return False
        screen = terminal(sys.stdout)
        longer = f"--early-stop {2 * since_best}" if stale else length_of(run.config.run, times=2)
        for line in filter(None, (words.finished(iterations, longer), words.folder_line(folder, None))):
            screen.show_line(line)
        screen.close()
        return True

    with transport.activity.holds_gil(f"reading the outcome of {folder}"):
        return on_root(transport, look)
