"""Progress as a live display: lasting lines, and under them two that change.

    epoch  3/20  ━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━━━━━ 45%
    loss 0.1234   accuracy 95.31%   1:12 left   12,345 examples/s   iteration 1,234/5,000

An event only updates the figures; a thread of rich draws them a few times a second, so a short iteration is not slowed.
"""

import threading
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ringtrain.errors import plain
from ringtrain.humanize import RATE
from ringtrain.report.events import Iteration, RunStarted
from ringtrain.report.screen import words
from ringtrain.report.screen.plain import Screen
from ringtrain.template import LINES

REFRESHES_PER_S = 5
GAP = "   "  # between parts of a line


class LiveScreen(Screen):
    """Draw on a terminal, in colours as the terminal and NO_COLOR allow."""

    def __init__(self, stream: TextIO):
        self._console = Console(file=stream, highlight=False, soft_wrap=False)
        self._live: Live | None = None
        self._status: Status | None = None

    @property
    def width(self) -> int:
        return self._console.width

    def begin(self, run: RunStarted, header: Sequence[str]) -> None:
        for line in header:
            self._console.print(Text(plain(line)), no_wrap=True, overflow="ellipsis")
        self._status = Status(run)
        self._live = Live(
            self._status,
            console=self._console,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        # A rank that is killed with its world cannot bring a hidden cursor back: it stays visible all along.
        self._console.show_cursor(True)

    def line(self, text: str) -> None:
        self._console.print(Text(plain(text, LINES)))

    def progress(self, event: Iteration) -> None:
        if self._status is not None:
            self._status.note(event)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class Status:
    """The lines that change; rich renders them at each refresh, in its own thread."""

    def __init__(self, run: RunStarted):
        self._run = run
        self._first: Iteration | None = None
        self._last: Iteration | None = None
        self._lock = threading.Lock()
        self._spinner = Spinner("dots", Text(words.PREPARING))

    def note(self, event: Iteration) -> None:
        with self._lock:
            self._first = self._first or event
            self._last = event

    def __rich_console__(self, console, options):
        with self._lock:
            first, last = self._first, self._last
        if first is None or last is None:
            yield self._spinner
        else:
            yield self._bar(last)
            yield Text(
                join_fitting(status_parts(first, last, self._run), options.max_width), no_wrap=True, overflow="crop"
            )
        # mpirun forwards whole lines only: so the last line is an empty one.
        yield Text("")

    def _bar(self, last: Iteration) -> Table:
        done = last.iteration / self._run.iterations
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        bar = ProgressBar(total=self._run.iterations, completed=last.iteration)
        row.add_row(words.epoch_of(last.epoch, self._run), bar, f"{100.0 * done:.0f}%")
        return row


def status_parts(first: Iteration, last: Iteration, run: RunStarted) -> list[str]:
    """Return the figures of the second line, the most important first."""
    return [
        f"loss {last.loss:.4f}",
        *([] if last.accuracy is None else [f"accuracy {words.accuracy_percent(last.accuracy)}"]),
        f"{time_left(first, last, run)} left",
        f"{last.images_per_s:,.0f} {RATE}",
        f"iteration {last.iteration:,}/{run.iterations:,}",
    ]


def time_left(first: Iteration, last: Iteration, run: RunStarted) -> str:
    """Return the time left, with evaluations, at the pace so far; "-:--" at first."""
    if last.iteration == first.iteration:
        return "-:--"
    pace_s = (last.seconds - first.seconds) / (last.iteration - first.iteration)
    return words.clock(pace_s * (run.iterations - last.iteration))


def join_fitting(parts: list[str], width: int) -> str:
    """Join as many of the parts, from the first, as fit a line of this width; the first is always included."""
    shown = parts[0]
    for part in parts[1:]:
        if len(shown) + len(GAP) + len(part) > width:
            break
        shown += GAP + part
    return shown
