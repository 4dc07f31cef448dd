"""A run from its first iteration to its end: iterations, and between them evaluations, checkpoints and records."""

import time

from ringtrain.checkpoint.run_folder import RunFolder
from ringtrain.data.batches import Batches
from ringtrain.errors import Interrupted
from ringtrain.ops.base import Ops
from ringtrain.report.events import (
    CheckpointSaved,
    Ended,
    EpochEnded,
    Evaluated,
    Iteration,
)
from ringtrain.report.rates import Rates
from ringtrain.report.sinks import Sink
from ringtrain.train.assemble import Assembly, check_replicas
from ringtrain.train.evaluate import EVALUATION_BATCH, Score
from ringtrain.train.loop import Outcome
from ringtrain.train.state import Progress, capture
from ringtrain.transport.base import Transport


class Run:
    """Every rank runs this; rank 0 alone has sinks that show or keep anything, and a folder.

    ``started``: when the process began, by ``time.perf_counter``; time stamps count from there.
    """

    def __init__(
        self,
        assembly: Assembly,
        ops: Ops,
        transport: Transport,
        progress: Progress,
        sink: Sink,
        folder: RunFolder | None,
        started: float,
    ):
        self._of, self._ops, self._transport = assembly, ops, transport
        self._progress, self._sink, self._folder, self._started = progress, sink, folder, started
        self._score: Score | None = None
        self._scored_at = self._saved_at = -1
        self._rates, self._training_s = Rates(), 0.0

    def go(self) -> None:
        """Train to the end. Raises Interrupted, after a checkpoint, where a rank was told to stop."""
        with self._batches() as batches:
            for batch in batches:
                began = time.perf_counter()
                outcome = self._of.worker.iterate(batch)
                seconds = time.perf_counter() - began
                self._account(batch, outcome, seconds)
                self._after(outcome.stop)
                if outcome.stop and self._progress.iteration < self._of.iterations:
                    self._end("interrupted")
                    raise self._interrupted()
        if self._score is None:  # a run that was resumed at its end
            self._evaluate()
        self._end("done")

    def _batches(self) -> Batches:
        of = self._of
        return Batches(
            of.data.train,
            of.sampler,
            self._transport.rank,
            self._transport.size,
            of.grain,
            of.augment,
            of.config.seed,
            start_iteration=self._progress.iteration,
            stop_iteration=of.iterations,
        )

    # ── after an iteration ────────────────────────────────────────────────────────────────────────────────
    def _account(self, batch, outcome: Outcome, seconds: float) -> None:
        self._training_s += seconds
        self._rates.add(batch.total, seconds)
        self._progress.iteration = batch.iteration + 1
        self._progress.add(outcome.loss * outcome.valid, outcome.correct, outcome.valid)
        self._sink.handle(
            Iteration(
                iteration=batch.iteration + 1,
                epoch=batch.epoch + 1,
                loss=outcome.loss,
                accuracy=outcome.correct / max(outcome.valid, 1),
                lr=self._of.rate.at(batch.iteration),
                examples=batch.total,
                images_per_s=self._rates.recent(),
                seconds=self._now(),
            )
        )

    def _after(self, stopping: bool) -> None:
        done, config = self._progress.iteration, self._of.config
        epoch_ends = done % self._of.sampler.iterations_per_epoch == 0
        last = done == self._of.iterations
        if last or self._due(config.evaluate_every, epoch_ends):
            self._evaluate()
        if epoch_ends:
            self._tell_epoch()
        elif self._scored_at == done and self._score:
            self._sink.handle(
                Evaluated(test_loss=self._score.loss, test_accuracy=self._score.accuracy, **self._where())
            )
        if last or stopping or self._due(config.checkpoint_every, epoch_ends):
            self._save()

    def _due(self, every: int, epoch_ends: bool) -> bool:
        return self._progress.iteration % every == 0 if every else epoch_ends

    def _evaluate(self) -> None:
        if self._of.data.test is None:
            return
        self._of.exchange.settle()
        batch = max(self._of.sampler.batch, EVALUATION_BATCH * self._transport.size)
        self._score = self._of.evaluator.score(self._of.data.test, batch)
        self._scored_at = self._progress.iteration

    def _tell_epoch(self) -> None:
        loss, accuracy = self._progress.close_epoch()
        fresh = self._score if self._scored_at == self._progress.iteration else None
        self._sink.handle(
            EpochEnded(
                train_loss=loss,
                train_accuracy=accuracy,
                test_loss=fresh and fresh.loss,
                test_accuracy=fresh and fresh.accuracy,
                **self._where(),
            )
        )

    def _where(self) -> dict:
        """Iteration and epoch of what was just finished, and the time stamp."""
        iteration = self._progress.iteration
        return {
            "iteration": iteration,
            "epoch": self._of.sampler.epoch_of(iteration - 1) + 1,
            "seconds": self._now(),
        }

    def _save(self) -> None:
        began = time.perf_counter()
        fresh = self._score if self._scored_at == self._progress.iteration else None
        is_best = fresh is not None and fresh.accuracy > (self._progress.best or -1.0)
        if is_best:
            self._progress.best = fresh.accuracy
        checkpoint = capture(self._of, self._ops, self._progress)
        if self._folder is None:
            return
        path = self._folder.save(checkpoint, self._of.config.keep, is_best)
        self._sink.handle(
            CheckpointSaved(path=str(path), iteration=checkpoint.iteration, seconds=time.perf_counter() - began)
        )

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────
    def _end(self, reason: str) -> None:
        digest = self._of.arena.hash(self._ops)
        check_replicas(self._transport, digest)
        exposed = self._of.exchange.traffic().exposed_s
        self._sink.handle(
            Ended(
                iterations=self._progress.iteration,
                epochs=self._of.sampler.epoch_of(self._progress.iteration),
                ranks=self._transport.size,
                test_accuracy=self._score and self._score.accuracy,
                test_loss=self._score and self._score.loss,
                images_per_s=self._rates.overall(),
                weights_sha256=digest,
                seconds=self._now(),
                exposed_share=exposed / self._training_s if self._training_s else 0.0,
                reason=reason,
            )
        )

    def _interrupted(self) -> Interrupted:
        where = self._folder.path if self._folder else "the run folder"
        error = Interrupted(
            f"stopped by a signal after iteration {self._progress.iteration}; a checkpoint is in {where}: go on with "
            f"--out {where} --resume auto"
        )
        error.everywhere = True
        return error

    def _now(self) -> float:
        return time.perf_counter() - self._started
