"""Streams of a device that is not there: what is issued waits in a queue until someone waits for it.

A stream's work is done when it is synchronised, or when one of its events is waited for; with it, whatever events it
waits for on other streams, and nothing else. So who forgets to wait reads poison, or what was there before. ``hasty``
streams are the opposite: all others run ahead as far as their events allow, so that who forgets to let a stream wait
sees it overtake.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.base import Mark
from tests.fakes.host_memory import DeviceRefusal, arrays_of


class Work(NamedTuple):
    """What a stream has to do. ``run``: a function, or the event to wait for; ``operands``: host memory and numbers."""

    name: str
    run: "Callable | HostEvent"
    operands: dict = {}


class Recording:
    """What is issued between two ends. ``loose``: streams that joined, and have yet to be waited for."""

    def __init__(self, stream):
        self.stream, self.work, self.loose = stream, [], set()


class Scheduler:
    """All streams of a device. ``quick``: whether work that is asked for is done by then. ``checks``: called when a
    stream has been synchronised. ``arriving``: memory that messages are about to arrive in. ``time``: in seconds, of
    which a piece of work takes a tenth of a thousandth, and an event a thousandth of that."""

    def __init__(self, hasty, quick, checks):
        self.lock, self.streams, self._hasty, self._checks = threading.RLock(), [], hasty, checks
        self.quick, self.arriving, self._log, self.time = quick, [], None, 0.0
        self.recording: Recording | None = None

    def issue(self, stream, work):
        with self.lock:
            for memory in arrays_of(work.operands) if self.arriving else ():
                if any(np.may_share_memory(memory, coming) for coming in self.arriving):
                    raise DeviceRefusal(f"{work.name} on memory that a message has still to arrive in")
            if self._log is not None:
                self._log.append(work)
            (self.recording if self.recorded(stream) else stream).work.append(work)
            if stream.early and self.recording is None:
                stream.run_ahead()

    @contextmanager
    def logged(self):
        """The work that is issued inside."""
        with self.lock:
            before, self._log = self._log, []
            try:
                yield self._log
            finally:
                self._log = before

    def recorded(self, stream) -> bool:
        return self.recording is not None and (stream is self.recording.stream or stream in self.recording.loose)

    def refuse_while_recording(self, action):
        if self.recording is not None:
            raise DeviceError(f"{action} while operations are recorded")

    def finish(self, stream, event=None):
        """Do the work of a stream, up to an event where one is given."""
        with self.lock:
            self.refuse_while_recording("a stream was waited for")
            if self._hasty:
                self._run_ahead()
            while stream.work and not (event and event.reached):
                stream.step()
            self._checks()

    def _run_ahead(self):
        moved = True
        while moved:
            moved = any(stream.run_ahead() for stream in self.streams)


class HostEvent(Mark):
    def __init__(self, stream, timed, recording):
        self.stream, self.timed, self.recording = stream, timed, recording
        self.reached, self.time = False, None

    def reach(self):
        self.reached, self.time = True, self.stream.scheduler.time

    def done(self):
        """Each time it is asked, the stream has done one thing more; or all, where the device is quick."""
        self._refuse_if_recorded()
        if self.stream.scheduler.quick:
            self.wait()
        with self.stream.scheduler.lock:
            if self.reached:
                return True
            if self.stream.work:
                self.stream.step()
            return False

    def wait(self):
        self._refuse_if_recorded()
        self.stream.scheduler.refuse_while_recording("an event was waited for")
        if not self.reached:
            self.stream.scheduler.finish(self.stream, self)

    def seconds_since(self, earlier):
        if not (self.timed and earlier.timed):
            raise DeviceError("seconds between events of which one was not recorded with timed=True")
        if not (self.reached and earlier.reached):
            raise DeviceError("seconds between events of which one is not done yet; wait for it")
        return self.time - earlier.time

    def _refuse_if_recorded(self):
        if self.recording:
            raise DeviceError("an event that is part of a recording was asked from outside of it")


class HostStream:
    """``early``: its work is done as soon as it is issued, as far as events let it. ``workspace``: of its products."""

    early, workspace, pointer = False, None, None

    def __init__(self, scheduler):
        self.scheduler, self.work = scheduler, deque()
        scheduler.streams.append(self)

    def issue(self, name, run, operands):
        self.scheduler.issue(self, Work(name, run, operands))

    def record(self, timed=False):
        with self.scheduler.lock:
            recording = self.scheduler.recording if self.scheduler.recorded(self) else None
            event = HostEvent(self, timed, recording)
            if not recording:
                self.work.append(Work("event", event.reach))
            return event

    def after(self, event):
        with self.scheduler.lock:
            if event.recording:
                self._join(event)
            elif self.scheduler.recorded(self):
                raise DeviceError("recorded work was told to wait for an event from before the recording")
            elif not event.reached:
                self.work.append(Work("wait", event))

    def _join(self, event):
        recording = self.scheduler.recording
        if recording is not event.recording:
            raise DeviceError("a stream was told to wait for an event of a recording that has ended")
        recording.loose.discard(event.stream)
        if self is not recording.stream:
            recording.loose.add(self)

    def synchronize(self):
        self.scheduler.finish(self)

    def run_ahead(self) -> bool:
        """Do what waits for no other stream; whether there was any."""
        before = len(self.work)
        while self.work and (not isinstance(self.work[0].run, HostEvent) or self.work[0].run.reached):
            self.step()
        return len(self.work) < before

    def step(self):
        """Do the next work, and first what it waits for."""
        run = self.work[0].run
        if isinstance(run, HostEvent):
            while not run.reached:
                run.stream.step()
            self.work.popleft()
        else:
            name, *_ = self.work.popleft()
            self.scheduler.time += 1e-7 if name == "event" else 1e-4
            run()


class HostGraph:
    def __init__(self, work):
        self.work = work

    def launch(self, stream):
        stream.scheduler.refuse_while_recording("a graph was launched")
        for work in self.work:
            stream.scheduler.issue(stream, work)


@contextmanager
def recording(stream):
    """What :meth:`CupyRuntime.record` promises."""
    scheduler, graphs = stream.scheduler, []
    with scheduler.lock:
        scheduler.refuse_while_recording("another recording was begun")
        recorded = scheduler.recording = Recording(stream)
        try:
            yield graphs
        finally:
            scheduler.recording = None
        if recorded.loose:
            raise DeviceError("a recording ended before its stream waited for another that had joined it")
        graphs.append(HostGraph(recorded.work))
