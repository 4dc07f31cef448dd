"""Reasons to stop besides signals, and the error where one occurs before training."""

import datetime
import time
from collections.abc import Callable

from ringtrain.config.record import TrainConfig
from ringtrain.errors import Interrupted, everywhere
from ringtrain.launch.slurm.job_end import ask_squeue, job_end
from ringtrain.train import texts
from ringtrain.train.agree import on_root
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.base import Transport

BEFORE_S = 120.0
SHARE = 0.1  # of what is left of the job at the start: a short one is not to be over when it has begun


def check_stop(transport: Transport, stop: StopFlag, goes_on: str) -> None:
    """Raises Interrupted on every rank, before the first iteration, where one has to stop. Collective.

    goes_on: where the run will go on from, in words
    """
    why = stop_reason(transport, stop)
    if why is not None:
        raise everywhere(Interrupted(texts.STOPPED_BEFORE(why=why, state=goes_on)))


def stop_reason(transport: Transport, stop: StopFlag) -> str | None:
    """Why ranks have to stop, in words; None where none has to. Collective."""
    every = transport.gather_json(stop.why())
    told = [rank for rank, why in enumerate(every) if why is not None]
    if not told:
        return None
    one = len(told) < len(every)
    why = every[told[0]]
    return texts.TO_RANK(why=why, rank=told[0]) if one and why.startswith("by ") else why


class JobEnd:
    """The reason to stop that a job's end is.

    end:    seconds since 1970; None where none is known
    before: seconds before it
    """

    def __init__(self, end: float | None, before_s: float, now: Callable[[], float] = time.time):
        self.end, self.before_s, self._now = end, before_s, now
        self.slowest_s = 0.0  # of the checkpoints so far

    def __call__(self) -> str | None:
        if self.end is None:
            return None
        left = self.end - self._now()
        return texts.BEFORE_JOB_END(seconds=left) if left < self.margin_s else None

    @property
    def margin_s(self) -> float:
        """A checkpoint that takes twice as long as the slowest so far is done by the end."""
        return max(self.before_s, 2 * self.slowest_s)

    def words(self) -> str | None:
        """A note for the user, or None."""
        if self.end is None and self.before_s:
            return texts.NO_JOB_END(seconds=self.before_s)
        if self.end is None:
            return None
        at = datetime.datetime.fromtimestamp(self.end).astimezone()
        return texts.JOB_END(time=at, seconds=self.before_s)


def find_job_end(transport: Transport, config: TrainConfig, environ, ask=ask_squeue, now=time.time) -> JobEnd:
    """Of the job that rank 0 is in, with ``--stop-before-s``; collective. Raises UsageError as ``job_end``."""
    given = config.stop_before_s
    if given == 0:
        return JobEnd(None, 0)
    end = on_root(transport, lambda: job_end(environ, ask, now()))
    if given is None and end is not None:
        given = min(BEFORE_S, SHARE * max(0.0, end - now()))
    return JobEnd(end, given or 0.0, now)
