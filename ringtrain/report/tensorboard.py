"""Scalars of a run for TensorBoard, in an event file of the run folder: a sink on the package tensorboard, which needs
no TensorFlow.

=====================  ================================================================================
tag                    value, by iteration
=====================  ================================================================================
train/loss             of the batch, before the update; likewise train/accuracy
train/lr               learning rate
train/images_per_s     over all ranks, recently
train/exposed_s        for which rank 0 has waited for communication, since the iteration before
test/loss              of an evaluation; likewise test/accuracy and further metrics: test/top5_accuracy
=====================  ================================================================================

Each start of a run makes a file of its own. Its second event, a SessionLog, takes back what earlier files hold of
iterations that the resumed run makes again.
Source: tensorboard/compat/proto/event.proto; tensorboard/backend/event_processing/event_accumulator.py
"""

import io
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ringtrain.errors import UsageError
from ringtrain.report.events import EpochEnded, Evaluated, Event, Iteration
from ringtrain.report.sinks import AppendedFile, Sink, unwritable

NAME = "events.out.tfevents"  # TensorBoard reads files with tfevents in their names, in the order of names
VERSION = "brain.Event:2"


class TensorBoard(Sink):
    """Write the scalars of events, each at once and whole; a failing disk ends no run.

    folder:     of the run
    resumed_at: finished iterations before this start
    warn:       is told once if the disk fails
    now:        the wall clock

    Raises: RingtrainError if the file cannot be made; ImportError without the package.
    """

    def __init__(
        self, folder: Path, resumed_at: int, warn: Callable[[str], None], now: Callable[[], float] = time.time
    ):
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._now = now
        number = len(list(folder.glob(f"{NAME}*")))
        self.path = str(folder / f"{NAME}.{int(now()):010}.{number:04}.{socket.gethostname()}.{os.getpid()}")
        try:
            self._file = AppendedFile(self.path, os.O_EXCL, warn)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._write(file_version=VERSION)
        self._write(step=resumed_at + 1, session_log=SessionLog(status=SessionLog.START))

    def handle(self, event: Event) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = {tag: value for tag, value in scalars_of(event).items() if value is not None}
        if scalars and isinstance(event, Iteration | EpochEnded | Evaluated):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            self._write(step=event.iteration, summary=Summary(value=values))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.summary.writer.record_writer import RecordWriter

        piece = io.BytesIO()
        RecordWriter(piece).write(Record(wall_time=self._now(), **fields).SerializeToString())
        self._file.append(piece.getvalue())


def scalars_of(event: Event) -> dict[str, float | None]:
    """Return the scalars of an event by their tags; None where it has no value."""
    match event:
        case Iteration():
            names = ("loss", "accuracy", "lr", "images_per_s", "exposed_s")
            return {f"train/{name}": getattr(event, name) for name in names}
        case EpochEnded() | Evaluated():
            scores = {"loss": event.test_loss, "accuracy": event.test_accuracy, **(event.test_metrics or {})}
            return {f"test/{name}": value for name, value in scores.items()}
    return {}


def check_tensorboard() -> None:
    """Raise UsageError without the package."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--tensorboard needs the Python package tensorboard ({error}): pip install 'ringtrain[tensorboard]', or "
            "leave --tensorboard out"
        ) from None
