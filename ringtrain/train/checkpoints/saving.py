"""Saves checkpoints, and captures the state from which survivors of a death go on."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.errors import RingtrainError
from ringtrain.humanize import plural
from ringtrain.report.events import CheckpointSaved, Event, Note
from ringtrain.report.sinks import Sink
from ringtrain.storage.checkpoint.store import Checkpoint
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.assembly.assemble import Assembly
from ringtrain.train.checkpoints.state import Progress, capture, checkpoint_of
from ringtrain.train.stopping.reasons import JobEnd

UNSAVED_AT_MOST = 3  # checkpoints in a row, of a run that goes on


@dataclass(frozen=True, slots=True)
class RecoverableState:
    """The state from which a rank can go on when another dies.

    due:      whether evaluation and checkpoint of the iteration are still to be made
    capture:  () → the state. Not collective
    finished: the iteration's records, which a dead rank 0 may not have logged; none before the first of this world
    """

    iteration: int
    due: bool
    capture: Callable[[], Checkpoint]
    finished: tuple[Event, ...] = ()


class Checkpointing:
    """Saves the checkpoints of a run; rank 0 alone has a folder. ``at``: finished iterations at the last call of
    :meth:`save`, or -1."""

    def __init__(self, run: Assembly, progress: Progress, sink: Sink, folder: RunFolder | None, end: JobEnd):
        self._run, self._activity, self._progress = run, run.transport.activity, progress
        self._sink, self._folder, self._job_end = sink, folder, end
        self.at = -1
        self._unsaved_in_a_row = 0

    def save(self, is_best: bool, must: bool) -> bool:
        """Save a checkpoint; False on rank 0 if the disk is full or fails. ``must``: whether that ends the run, as no
        later checkpoint can make up for this one. Collective."""
        began = time.perf_counter()
        self.at = self._progress.iteration
        checkpoint = capture(self._run, self._run.ops, self._run.transport, self._progress)
        if checkpoint is None or self._folder is None:
            return True
        writing = f"writing checkpoint {self._folder.numbered(checkpoint.iteration)}"
        try:
            with self._activity.during(writing, limited=True):
                path = self._folder.save(checkpoint, self._run.config.run.keep, is_best)
        except RingtrainError as error:
            self._unsaved(error, must)
            return False
        self._unsaved_in_a_row = 0
        seconds = time.perf_counter() - began
        self._job_end.slowest_s = max(self._job_end.slowest_s, seconds)
        self._sink.handle(CheckpointSaved(path=str(path), iteration=checkpoint.iteration, seconds=seconds))
        return True

    def best(self) -> float | None:
        """The accuracy, or the loss, of the folder's best checkpoint; None without a folder."""
        if self._folder is None:
            return None
        with self._activity.during(f"reading checkpoint {self._folder.best}", limited=True):
            return self._folder.best_so_far()

    def _unsaved(self, error: RingtrainError, must: bool) -> None:
        """End the run if it must, or else note it: a disk that is full for an hour must not cost a day's training, and
        the last checkpoints are still there."""
        self._unsaved_in_a_row += 1
        if must or self._unsaved_in_a_row == UNSAVED_AT_MOST:
            raise RingtrainError(str(error)) from error
        left = UNSAVED_AT_MOST - self._unsaved_in_a_row
        more = plural(left, "checkpoint")
        self._sink.handle(
            Note(
                text=(
                    f"no checkpoint of iteration {self._progress.iteration:,}: {error}. The run goes on; it ends if "
                    f"{more} more cannot be saved"
                )
            )
        )

    def capture_alone(self, progress: Progress) -> Checkpoint:
        """The state at ``progress``. Not collective."""
        return checkpoint_of(self._run, self._run.ops, progress, self._run.exchange.owned_state.state())
