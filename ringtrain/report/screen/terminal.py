"""The user's view of a run: a sink that puts events in words and shows them on a screen.

The two screens are plain lines, for files, pipes and simple terminals, and a live one with a progress
display under the lines.
"""

import os
from typing import TextIO

from ringtrain.report import events
from ringtrain.report.screen import words
from ringtrain.report.screen.epoch_table import Epochs
from ringtrain.report.screen.plain import PlainScreen, Screen
from ringtrain.report.sinks import Sink
from ringtrain.show.results import is_live


class Terminal(Sink):
    """Show a run on a screen: the header, progress, results as they come, and its end."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._epochs: Epochs | None = None  # of the run that has started
        self._last: events.Iteration | None = None
        self._best: float | None = None
        self._best_in: int | None = None  # epoch; None where an earlier start of the run had it
        self._saved: str | None = None
        self._exchange: events.Exchanged | None = None
        self._apart: str | None = None

    def handle(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._epochs = Epochs(event)
                self._best, self._best_in = event.best, None
                self._screen.begin(event, words.run_header(event))
            case events.Compiled():
                self._screen.line(words.compiled(event))
            case events.Iteration():
                self._last = event
                self._screen.progress(event)
            case events.EpochEnded():
                for line in self._started.lines(event, self._last, self._is_best(event), self._screen.width):
                    self._screen.line(line)
                if self._started.run.reproducible and event.weights_sha256:
                    self._screen.line(words.weights(event))
            case events.Evaluated():
                self._screen.line(words.evaluated(event, self._is_best(event)))
            case events.CheckpointSaved():  # a line for each would bury the results: the last line names the newest
                self._saved = event.path
            case events.RanksLost():
                self._screen.line(words.ranks_lost(event))
            case events.Note():
                self._screen.line(f"note: {event.text}")
            case events.Ranks():
                self._apart = words.lag_line(event)
            case events.Exchanged():
                self._exchange = event
            case events.Ended():
                self._ended(event)
            case events.Failed():
                pass  # the caller of the run reports its error

    def show_line(self, text: str) -> None:
        self._screen.line(text)

    def close(self) -> None:
        self._screen.close()

    @property
    def _started(self) -> Epochs:
        assert self._epochs is not None, "RunStarted comes before every other event"
        return self._epochs

    def _is_best(self, event: events.EpochEnded | events.Evaluated) -> bool:
        value = self._compared(event)
        if value is None or not events.is_better(self._started.run.best_by, value, self._best):
            return False
        self._best, self._best_in = value, event.epoch
        return True

    def _compared(self, event: events.EpochEnded | events.Evaluated | events.Ended) -> float | None:
        """The figure by which evaluations are compared."""
        return event.test_loss if self._started.run.best_by == "loss" else event.test_accuracy

    def _ended(self, event: events.Ended) -> None:
        self._screen.close()
        run, best = self._started.run, ""
        value = self._compared(event)
        if value is not None and self._best is not None and events.is_better(run.best_by, self._best, value):
            best = words.best_of(run.best_by, self._best, self._best_in)
        weights = words.weights(event) if run.reproducible else None
        kept = words.folder_line(run.folder, self._saved)
        more = [words.communication(event, self._exchange), self._apart, weights, kept]
        for line in words.ended(event, best, more):
            self._screen.line(line)


def terminal(stream: TextIO) -> Terminal:
    """Return a terminal sink for this stream, live if the stream supports that."""
    if not is_live(stream, os.environ):
        return Terminal(PlainScreen(stream))
    from ringtrain.report.screen.live import LiveScreen  # rich: only where it is shown

    return Terminal(LiveScreen(stream))
