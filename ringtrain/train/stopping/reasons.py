"""The reasons to stop a run, and the error for a stop before the first iteration."""

import datetime
import time
from collections.abc import Callable, Mapping

from ringtrain.config.record import RunConfig
from ringtrain.errors import Interrupted, everywhere
from ringtrain.launch.slurm.job_end import SIGNAL_S, Ask, ask_squeue, job_end
from ringtrain.parsing import whole_number
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.agree import on_root
from ringtrain.transport.base import Transport

BEFORE_S = 120.0
SHARE = 0.1  # of the seconds that the job has left at the start: a short job must not stop at once


def check_stop(transport: Transport, stop: StopFlag, state: str) -> None:
    """Raise Interrupted on every rank if one has to stop before the first iteration. Collective.

    state: the checkpoint from which the run will go on, in words
    """
    why = stop_reason(transport, stop)
    if why is not None:
        raise everywhere(
            Interrupted(f"stopped {why} before the first iteration; {state}: start it again by the same command")
        )


def stop_reason(transport: Transport, stop: StopFlag) -> str | None:
    """The reason why ranks have to stop, in words; None if none has to. Collective."""
    every = transport.gather_json(stop.why())
    stopping = [rank for rank, why in enumerate(every) if why is not None]
    if not stopping:
        return None
    why, alone = every[stopping[0]], len(stopping) < len(every)
    return f"{why} to rank {stopping[0]}" if alone and why.startswith("by ") else why


class JobEnd:
    """The end of the job as a reason to stop.

    end:      seconds since 1970, or None if it is not known
    before_s: the run stops this many seconds before
    signal_s: the job script stops it so many before, if at all
    """

    def __init__(self, end: float | None, before_s: float, now: Callable[[], float] = time.time, signal_s: int = 0):
        self.end, self.before_s, self._now, self._signal_s = end, before_s, now, signal_s
        self.slowest_s = 0.0  # the longest time of a checkpoint

    def __call__(self) -> str | None:
        if self.end is None:
            return None
        left = self.end - self._now()
        margin_s = max(self.before_s, 2 * self.slowest_s)  # enough for a checkpoint
        if left < 0:
            return f"{-left:.0f} s after the end of the job (RINGTRAIN_JOB_END, if set: is it of an earlier one?)"
        return f"{left:.0f} s before the end of the job" if left < margin_s else None

    def words(self) -> str | None:
        if self.end is None and self.before_s:
            return (
                f"--stop-before-s {self.before_s:g}: no end of a job is known here: export "
                "RINGTRAIN_JOB_END=$(($(date +%s) + SECONDS)) at the top of the job's script"
            )
        if self.end is None:
            return None
        at = datetime.datetime.fromtimestamp(self.end).astimezone()
        before_s = max(self.before_s, self._signal_s)
        return f"the job ends at {at:%Y-%m-%d %H:%M:%S %Z}; this run stops {before_s:.0f} s before that"


def find_job_end(
    transport: Transport,
    config: RunConfig,
    environ: Mapping[str, str],
    ask: Ask = ask_squeue,
    now: Callable[[], float] = time.time,
) -> JobEnd:
    """The end of rank 0's job, with ``--stop-before-s``. Collective. Raises UsageError as ``job_end``."""
    before_s = config.stop_before_s
    if before_s == 0:
        return JobEnd(None, 0)
    end = on_root(transport, lambda: job_end(environ, ask, now()))
    if before_s is None and end is not None:
        before_s = min(BEFORE_S, SHARE * max(0.0, end - now()))
    return JobEnd(end, before_s or 0.0, now, whole_number(environ.get(SIGNAL_S, "")) or 0)
