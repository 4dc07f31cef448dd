"""Runs the iterations from the first to the end, and between them evaluations, checkpoints and records."""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from ringtrain.errors import DivergedError, Interrupted, RingtrainError, StalledError, everywhere
from ringtrain.humanize import plural
from ringtrain.report.events import CheckpointSaved, Event, Iteration, is_better
from ringtrain.report.sinks import Sink
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.assembly.recipe import EARLY_STOP, best_by_of, is_stale
from ringtrain.train.checkpoints.state import Progress, averaged_weights, capture, checkpoint_of
from ringtrain.train.evaluate import EvaluationStopped, Score
from ringtrain.train.run.driver import make_driver
from ringtrain.train.run.records import RunRecords
from ringtrain.train.run.tracing import Tracer
from ringtrain.train.step.loss_sum import IterationLoss
from ringtrain.train.stopping.reasons import JobEnd, stop_reason
from ringtrain.train.stopping.signals import StopFlag

UNSAVED_AT_MOST = 3  # checkpoints in a row, of a run that goes on


@dataclass(frozen=True, slots=True)
class RecoverableState:
    """The state from which a rank can go on when another dies."""

    iteration: int
    due: bool  # whether evaluation and checkpoint of the iteration are still to be made
    capture: Callable[[], Checkpoint]  # () → the state. Not collective
    # the iteration's records, which a dead rank 0 may not have logged; none before the first of this world
    finished: tuple[Event, ...] = ()


class Run:
    """The training of a run, on every rank; rank 0 alone has a folder, and sinks that show or keep anything.

    started: the start of the process, by ``time.perf_counter``, from which time stamps count
    due:     whether evaluation and checkpoint of the last finished iteration are still to be made
    """

    def __init__(
        self,
        assembly: Assembly,
        progress: Progress,
        sink: Sink,
        folder: RunFolder | None,
        started: float,
        stop: StopFlag,
        end: JobEnd,
        tracing: Tracer | None = None,
        due: bool = False,
    ):
        self._run, self._transport, self._progress, self._folder = assembly, assembly.transport, progress, folder
        self._sink, self._stop, self._job_end = sink, stop, end
        self._tracing = tracing  # until its file is written
        self._due_at_once = due
        self._before: Progress | None = None  # the progress at the start of the meeting under way
        self._syncs_at: int | None = None  # finished iterations at the next meeting, until it is over
        self._score: Score | None = None  # the last one
        self._checked = (-1, False)  # finished iterations at the last check; whether it compared ranks
        self._records = RunRecords(assembly, progress, sink, started)
        self._saved_at = -1  # finished iterations at the last checkpoint, saved or not
        self._unsaved_in_a_row = 0

    def go(self) -> None:
        """Train to the end. Raises Interrupted, after a checkpoint, if a rank has to stop."""
        try:
            if self._due_at_once:
                self._end_early(self._after(stopping=False))
            if self._tracing is not None:
                self._tracing.align()
            begun, tick = self._progress.iteration, self._records.tick
            with closing(make_driver(self._run, begun, self._account, tick)) as driver:
                while self._progress.iteration < self._run.iterations and not self._stale:
                    self._syncs_at = self._next_sync()
                    stopping = driver.train(self._progress.iteration, self._syncs_at)
                    self._write_trace(stopping)
                    self._end_early(self._after(stopping))
            self._finish()
        except StalledError as error:  # in a wait outside collectives: the guard knows the others' work
            raise error if self._run.guard is None else self._run.guard.with_rank_states(error) from error
        finally:
            if self._tracing is not None:
                self._tracing.end()

    def _finish(self) -> None:
        if self._saved_at != self._progress.iteration:  # a run that was resumed at its end
            score, stopping = self._evaluated()
            self._save(self._best(score), must=True)
            self._end_early(stopping)
        if self._stale and self._progress.iteration < self._run.iterations:
            best_by, count = best_by_of(self._run.config), plural(self._progress.since_best, "evaluation")
            self._records.note(f"--early-stop: no test {best_by} better than {self._progress.best:.4f} in {count}")
            self._end(EARLY_STOP)
        else:
            self._end("done")

    @property
    def _stale(self) -> bool:
        """Whether ``--early-stop`` ends the run."""
        return is_stale(self._run.config.run, self._progress.since_best)

    def _end_early(self, stopping: bool) -> None:
        if stopping:
            self._end("interrupted")
            why, done = stop_reason(self._transport, self._stop), self._progress.iteration
            folder = self._folder.path if self._folder else "the run folder"
            self._stop.stopped()
            raise everywhere(
                Interrupted(
                    f"stopped {why} after iteration {done}; a checkpoint is in {folder}: go on with --out {folder} "
                    "--resume auto"
                )
            )

    def _write_trace(self, stopping: bool) -> None:
        """Write the trace after its last iteration, or the run's."""
        done, tracing = self._progress.iteration, self._tracing
        if tracing is not None and (stopping or done >= min(tracing.window.stop, self._run.iterations)):
            self._tracing = None
            self._records.note(tracing.write_all())

    def _next_sync(self) -> int:
        """The number of finished iterations at the next meeting of ranks."""
        done, config = self._progress.iteration, self._run.config
        every = (config.run.evaluate_every, config.run.checkpoint_every, config.exchange.check_replicas or 0)
        periods = filter(None, (self._run.sampler.iterations_per_epoch, *every))
        return min(self._run.iterations, *(done - done % period + period for period in periods))

    def _account(self, outcome: IterationLoss) -> None:
        self._progress.iteration = outcome.iteration + 1
        self._progress.add(outcome.loss_sum, outcome.correct, outcome.valid)
        self._records.iteration(outcome)

    # ── after an iteration ────────────────────────────────────────────────────────────────────────────────
    def _after(self, stopping: bool) -> bool:
        """Evaluate, record and save as due; whether to end early. A run that stops has little time: it only saves, and
        does not finish an evaluation."""
        self._before = replace(self._progress)
        done, config = self._progress.iteration, self._run.config
        epoch_ends = done % self._run.sampler.iterations_per_epoch == 0
        last = done == self._run.iterations
        self._check(comparing=config.exchange.check_replicas != 0)
        evaluating = last or (self._due(config.run.evaluate_every, epoch_ends) and not stopping)
        score, stopped = self._evaluated() if evaluating else (None, False)
        self._records.bad_images()
        if epoch_ends:
            self._records.epoch(score, self._digest(settled=score is not None))
        elif score:
            self._records.evaluated(score)
        best = self._best(score)
        if score is not None:
            self._progress.since_best = 0 if best else self._progress.since_best + 1
        last = last or self._stale
        if last or stopping or stopped or best or self._due(config.run.checkpoint_every, epoch_ends):
            self._save(best, must=last or stopping or stopped)
        self._before = self._syncs_at = None
        return stopped or (stopping and not last)

    def recoverable(self) -> RecoverableState | None:
        """This rank's state after the last finished iteration; None if the strategy has no whole state on a rank."""
        if not self._run.exchange.facts.survives_rank_loss:
            return None
        self._run.exchange.outlive()
        progress = self._before or self._progress
        due = self._before is not None or progress.iteration == self._syncs_at  # a death may come between the two
        # what follows a due iteration is recorded again
        finished = tuple(each for each in self._records.finished if not due or isinstance(each, Iteration))
        return RecoverableState(progress.iteration, due, partial(checkpoint_of, self._run, progress), finished)

    def _due(self, every: int, epoch_ends: bool) -> bool:
        return self._progress.iteration % every == 0 if every else epoch_ends

    def _best(self, score: Score | None) -> Score | None:
        before, by = self._progress.best, best_by_of(self._run.config)
        return score if score is not None and is_better(by, getattr(score, by), before) else None

    def _evaluated(self) -> tuple[Score | None, bool]:
        """(the score, False), or (None, True) if a rank has to stop meanwhile."""
        run = self._run
        if run.data.test is None:
            return None, False
        run.exchange.synchronize()
        try:
            with averaged_weights(run), self._transport.activity.during("evaluating"):
                self._score = run.evaluator.score(run.data.test, run.evaluation_batch, run.evaluation_grain)
        except EvaluationStopped:
            return None, True
        if self._score and not math.isfinite(self._score.loss):
            what, done = f"the test loss is {self._score.loss:g}", self._progress.iteration
            raise everywhere(
                DivergedError(
                    f"{what} after iteration {done}; this state is not saved. Lower --lr, add --warmup or "
                    "--clip-norm, and go on from an earlier checkpoint with --resume"
                )
            )
        return self._score, False

    def _digest(self, settled: bool) -> str | None:
        """The hash of the weights, on rank 0; None if ranks' weights differ."""
        if not settled and not self._run.exchange.facts.exact:
            return None
        self._run.exchange.synchronize()
        return self._run.arena.hash(self._run.ops) if self._transport.rank == 0 else None

    def _save(self, best: Score | None, must: bool) -> None:
        """Save a checkpoint. ``must``: whether a disk that is full or fails ends the run, as no later checkpoint can
        make up for this one. Collective."""
        self._check(comparing=self._run.config.exchange.check_replicas != 0)
        folder, activity = self._folder, self._transport.activity
        if best is not None:
            self._progress.best = getattr(best, best_by_of(self._run.config))
        began, self._saved_at = time.perf_counter(), self._progress.iteration
        checkpoint, kept = capture(self._run, self._progress), self._progress.best
        if checkpoint is not None and folder is not None:
            try:
                with activity.during(f"writing checkpoint {folder.numbered(checkpoint.iteration)}", limited=True):
                    path = folder.save(checkpoint, self._run.config.run.keep, best is not None)
            except RingtrainError as error:
                self._unsaved(error, must)
                if best is not None:
                    with activity.during(f"reading checkpoint {folder.best}", limited=True):
                        kept = folder.best_so_far()
            else:
                self._unsaved_in_a_row, seconds = 0, time.perf_counter() - began
                self._job_end.slowest_s = max(self._job_end.slowest_s, seconds)
                self._sink.handle(CheckpointSaved(path=str(path), iteration=checkpoint.iteration, seconds=seconds))
        if best is not None:  # later scores compare with a saved one
            self._progress.best = self._transport.gather_json(kept)[0]

    def _unsaved(self, error: RingtrainError, must: bool) -> None:
        """End the run if it must, or else note it: a disk that is full for an hour must not cost a day's training, and
        the last checkpoints are still there."""
        self._unsaved_in_a_row += 1
        if must or self._unsaved_in_a_row == UNSAVED_AT_MOST:
            raise RingtrainError(str(error)) from error
        more = plural(UNSAVED_AT_MOST - self._unsaved_in_a_row, "checkpoint")
        self._records.note(
            f"no checkpoint of iteration {self._progress.iteration:,}: {error}. The run goes on; it ends if {more} "
            "more cannot be saved"
        )

    def _check(self, comparing: bool = True) -> None:
        """Check that all state is finite, as an update may overflow although its loss did not, and the same on all
        ranks. Collective."""
        done, replicas = self._progress.iteration, self._run.replicas
        if self._checked >= (done, comparing):
            return
        gradient = replicas.gradient_problem()
        self._run.exchange.synchronize()
        replicas.check(f"after iteration {done}", gradient, comparing)
        self._checked = (done, comparing)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────
    def _end(self, reason: str) -> None:
        self._check()
        self._records.ended(reason, self._score, self._run.arena.hash(self._run.ops))
