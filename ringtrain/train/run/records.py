"""Makes the records of a run, from its iterations to its end."""

import resource
import time
from contextlib import suppress
from dataclasses import asdict

from ringtrain.exchange.parts import parts_of
from ringtrain.humanize import plural
from ringtrain.report.events import (
    BucketExchanged,
    Ended,
    EpochEnded,
    Evaluated,
    Event,
    Exchanged,
    Iteration,
    Note,
    Ranks,
)
from ringtrain.report.rates import Rates
from ringtrain.report.sinks import Sink
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.state import Progress, per
from ringtrain.train.evaluate import Score, bad_images
from ringtrain.train.step.loss_sum import IterationLoss

FORGET_PEAK = "5"  # written to a process's clear_refs on Linux. Source: proc_pid_clear_refs(5)
# Of waits that are worth a note: a share of the time, and seconds.
WORTH_SHARE, WORTH_S = 0.05, 5.0


class RunRecords:
    """Measures a run, and sends its records to the sink. Rank 0's sink alone shows or keeps them.

    started:  the start of the process, by ``time.perf_counter``, from which time stamps count
    finished: the records of the last iteration
    """

    def __init__(self, run: Assembly, progress: Progress, sink: Sink, started: float):
        self._run, self._progress, self._sink, self._started = run, progress, sink, started
        self._rates = Rates(period=parts_of(run.config.exchange).every)
        self._training_s = self._waited_s = 0.0  # seconds of iterations; of this rank's waits for its examples
        self._counts = run.worker.passes.loss.accuracy  # whether the loss counts correct elements
        self._skipped = run.scale.skipped if run.scale is not None else 0  # updates in the log
        self._recorded_exposed_s = self._exposed_s  # at the last record of an iteration
        self.finished: tuple[Event, ...] = ()
        self._bad: dict[str, dict[int, str]] = {}  # part → images in the log, by number, and why

    def tick(self, examples: int, seconds: float, waited_s: float) -> None:
        """Count examples of all ranks, their time, and the time for which this rank waited for its part."""
        self._training_s += seconds
        self._waited_s += waited_s
        self._rates.add(examples, seconds + waited_s)

    def iteration(self, outcome: IterationLoss) -> None:
        self._note_skipped(outcome.iteration + 1)
        self.finished = ()
        self._finish(
            Iteration(
                iteration=outcome.iteration + 1,
                epoch=self._run.sampler.epoch_of(outcome.iteration) + 1,
                loss=per(outcome.loss_sum, outcome.valid),
                accuracy=per(outcome.correct, outcome.valid) if self._counts else None,
                lr=self._run.rate.at(outcome.iteration),
                examples=outcome.examples,
                images_per_s=self._rates.recent(),
                seconds=self._now(),
                exposed_s=self._exposed_s - self._recorded_exposed_s,
            )
        )
        self._recorded_exposed_s = self._exposed_s

    def _note_skipped(self, iteration: int) -> None:
        scale = self._run.scale
        if scale is None or scale.skipped == self._skipped:
            return
        self._skipped = scale.skipped
        updates = plural(scale.skipped, "update")
        self.note(
            f"{updates} left out by iteration {iteration:,}: the gradient was not finite; the loss is scaled by "
            f"{scale.factor:g} from here on"
        )

    def note(self, text: str) -> None:
        self._sink.handle(Note(text=text))

    def bad_images(self) -> None:
        """Record the image files that could not be decoded since the last call, on any rank. Collective."""
        for part, split in self._run.data.splits():
            known = self._bad.setdefault(part, {})
            new = bad_images(self._run.transport, split, known)
            known |= new
            if new:
                what = f"{len(known):,} {'replaced' if part == 'train' else 'left out'} so far, {len(new):,} new"
                text = f"bad images of the {part} part: {what}, first: {next(iter(new.values()))}; the log has all"
                self._sink.handle(Note(text=text, lines=[*new.values()]))

    def evaluated(self, score: Score) -> None:
        """Record an evaluation within an epoch. Collective."""
        self._finish(Evaluated(**_test_fields(score), **self._met()))

    def epoch(self, score: Score | None, weights_sha256: str | None) -> None:
        """Record the end of an epoch. Collective."""
        loss, accuracy = self._progress.close_epoch()
        self._finish(
            EpochEnded(
                train_loss=loss,
                train_accuracy=accuracy if self._counts else None,
                **_test_fields(score),
                weights_sha256=weights_sha256,
                **self._met(),
            )
        )

    def _finish(self, event: Event) -> None:
        self.finished += (event,)
        self._sink.handle(event)

    def ended(self, reason: str, score: Score | None, weights_sha256: str) -> None:
        """Record the traffic, the ranks and the end of the run. Collective."""
        self._exchanged()
        ranks = self._ranks()
        self._sink.handle(ranks)
        self._note_waits(ranks)
        ended = Ended(
            iterations=self._progress.iteration,
            epochs=self._run.sampler.epoch_of(self._progress.iteration),
            ranks=self._run.transport.size,
            **_test_fields(score),
            images_per_s=self._rates.overall(),
            weights_sha256=weights_sha256,
            seconds=self._now(),
            exposed_share=self._exposed_s / self._training_s if self._training_s else 0.0,
            reason=reason,
        )
        if reason == "done":
            self._note_exchange(ranks)
        self._sink.handle(ended)

    def _note_waits(self, ranks: Ranks) -> None:
        """Say so if the loader held up a rank."""
        assert ranks.waited_s is not None, "these ranks are of this version"
        share, waited_s, rank = max(
            (waited_s / (waited_s + training_s or 1.0), waited_s, rank)
            for rank, (waited_s, training_s) in enumerate(zip(ranks.waited_s, ranks.training_s, strict=True))
        )
        if share >= WORTH_SHARE and waited_s >= WORTH_S:
            self.note(
                f"rank {rank} waited {share:.0%} of the time for its examples: the loader is the limit. It is faster "
                "with more cores a rank, smaller files or uint8 arrays: docs/slow.md, How fast must the loader be?"
            )

    def _note_exchange(self, ranks: Ranks) -> None:
        """Say so if all-reduces held up all ranks. A rank that waits for a slower one is blocked too: the one that is
        blocked least counts."""
        exposed_s, training_s = min(zip(ranks.exposed_s, ranks.training_s, strict=True))
        share, by_all_reduce = exposed_s / (training_s or 1.0), self._run.config.exchange.sync == "allreduce"
        if by_all_reduce and share >= WORTH_SHARE and exposed_s >= WORTH_S:
            self.note(
                f"the exchange blocked {share:.0%} of the training: `ringtrain tune`, under the same mpirun, measures "
                "which --algorithm is fastest here"
            )

    def _exchanged(self) -> None:
        traffic = self._run.exchange.reducers.traffic()
        self._sink.handle(
            Exchanged(
                overlap=self._run.config.exchange.overlap,
                bytes_sent=traffic.bytes_sent,
                exposed_s=traffic.exposed_s,
                buckets=tuple(BucketExchanged(**asdict(bucket)) for bucket in traffic.buckets),
                **self._where(),
            )
        )

    def _met(self) -> dict:
        """Fields of a record that all ranks make together. Collective."""
        sent = sum(self._run.transport.gather_json(self._run.exchange.reducers.traffic().bytes_sent))
        distance = self._run.exchange.distance
        return {**self._where(), "bytes_sent": sent or self._no_bytes, "distance": distance}

    def _where(self) -> dict:
        """The last finished iteration and its epoch, and the time stamp."""
        iteration = self._progress.iteration
        return {"iteration": iteration, "epoch": self._run.sampler.epoch_of(iteration - 1) + 1, "seconds": self._now()}

    def _now(self) -> float:
        return time.perf_counter() - self._started

    # ── ranks ─────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _exposed_s(self) -> float:
        """The seconds that this rank has waited for communication."""
        return self._run.exchange.reducers.exposed_s + self._run.worker.in_layers_s

    @property
    def _no_bytes(self) -> int | None:
        """The record of no counted bytes: one rank alone sends none; of several ranks, the MPI's own all-reduce has
        sent them uncounted."""
        return 0 if self._run.transport.size == 1 else None

    def _ranks(self) -> Ranks:
        """The statistics of all ranks; collective."""
        run = self._run
        traffic, nbytes = run.exchange.reducers.traffic(), run.arena.count * run.arena.weights.dtype.itemsize
        values = {
            "images": run.worker.images,
            "updates": run.worker.updates,
            "training_s": self._training_s,
            "waited_s": self._waited_s,
            "exposed_s": self._exposed_s,
            "bytes_sent": traffic.bytes_sent,
            "bytes_received": traffic.bytes_received,
            "between_bytes": run.transport.links.between_bytes,
            "weights_bytes": nbytes,
            "gradient_bytes": nbytes,
            "state_bytes": run.exchange.facts.state_bytes,
            "peak_bytes": peak_bytes(),
        }
        every = run.transport.gather_json(values)
        by_rank = {name: [each[name] for each in every] for name in values}
        if not any(by_rank["bytes_sent"]):
            by_rank["bytes_sent"] = by_rank["between_bytes"] = [self._no_bytes] * len(every)
        lag = run.exchange.serving.lag()
        return Ranks(**by_rank, lag={"clock": lag.clocks, "version": lag.versions} if lag else None)


def _test_fields(score: Score | None) -> dict:
    if score is None:
        return {"test_loss": None, "test_accuracy": None}
    return {"test_loss": score.loss, "test_accuracy": score.accuracy, "test_metrics": dict(score.metrics)}


def forget_peak() -> None:
    """Reset :func:`peak_bytes`, if the system can: another run of this process may have had more."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write(FORGET_PEAK)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
