"""Text that commands print: results on standard output; notes, progress and complaints on standard error."""

import sys
import time
from collections.abc import Iterable

from ringtrain.errors import RingtrainError
from ringtrain.template import Lines, escaped_message, joined

PROGRESS_EVERY_S = 5.0


def echo(*lines: str, err: bool = False, end: str = "\n") -> None:
    """Print lines for people. All that commands say goes through here, whatever text of others it holds."""
    # Text and end in one write: ranks write to one stderr at once.
    print(f"{joined(lines)}{end}", file=sys.stderr if err else sys.stdout, end="", flush=True)


def echo_file(text: str) -> None:
    """Print what else goes to a file: JSON, CSV, a script. It is plain already, for its reader's sake."""
    print(text if text.endswith("\n") else f"{text}\n", end="", flush=True)


def echo_notes(notes: Iterable[str], err: bool = False) -> None:
    for note in notes:
        echo(f"note: {note}", err=err)


def from_ringtrain(message: str | RingtrainError, rank: int | None = None) -> Lines:
    """Return an error or a note with its sender: ringtrain, or one of its ranks. An error keeps its lines."""
    sender = "ringtrain" if rank is None else f"ringtrain: rank {rank}"
    text = Lines(message) if isinstance(message, RingtrainError) else message
    return Lines(f"{sender}: {escaped_message(text)}")


def complain(text: str | RingtrainError, rank: int | None = None) -> None:
    echo(from_ringtrain(text, rank), err=True)


class ProgressLine:
    """Print a line on standard error every few seconds: under mpirun there is no terminal to redraw a line."""

    def __init__(self, clock=time.monotonic):
        self._clock, self._shown_at = clock, clock()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._clock() - self._shown_at > PROGRESS_EVERY_S:
            self._shown_at = self._clock()
            echo(f"# {what}: {done} of {total} done", err=True)
