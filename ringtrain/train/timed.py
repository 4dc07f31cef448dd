"""A sink whose writing is a stage of its own: a file system that does not answer is told by its name."""

from ringtrain.report.events import Event
from ringtrain.report.sinks import Sink
from ringtrain.transport.activity import Activity


class Timed(Sink):
    """``what`` it does: "writing runs/first/log.jsonl"."""

    def __init__(self, inner: Sink, activity: Activity, what: str):
        self._inner, self._activity, self._what = inner, activity, what

    def handle(self, event: Event) -> None:
        with self._activity.during(self._what, limited=True):
            self._inner.handle(event)

    def close(self) -> None:
        with self._activity.during(self._what, limited=True):
            self._inner.close()
