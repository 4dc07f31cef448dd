"""The time at which the scheduler will end this process's job.

::
    RINGTRAIN_JOB_END      seconds since 1970; a job script sets it, under any scheduler
    RINGTRAIN_SIGNAL_S     seconds before it at which the job script has a signal sent, and passes it on
    SLURM_JOB_END_TIME     the same, of Slurm 23.02 and later
    SLURM_JOB_ID           the query for an older Slurm: squeue -h -j ID -o %e
"""

import datetime
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress

from ringtrain.errors import UsageError
from ringtrain.parsing import whole_number

OWN, SIGNAL_S, SLURM, JOB = "RINGTRAIN_JOB_END", "RINGTRAIN_SIGNAL_S", "SLURM_JOB_END_TIME", "SLURM_JOB_ID"
NUMBERS = (JOB, "PBS_JOBID", "LSB_JOBID")  # of jobs: Slurm, PBS (also Torque), LSF
ASKING_S = 20  # a busy Slurm is slow
FAR_S = 10 * 365 * 86400  # Slurm uses an end beyond this for none

Ask = Callable[[str], str]  # the number of a job → when it ends, in squeue's words


def job_number(environ: Mapping[str, str]) -> str | None:
    """Return the number of this process's batch job."""
    return next((environ[name] for name in NUMBERS if environ.get(name)), None)


def job_end(environ: Mapping[str, str], ask: Ask, now: float) -> float | None:
    """Return the job's end in seconds since 1970; None without a job or an end, or where Slurm's has passed.

    Raises: UsageError for a ``RINGTRAIN_JOB_END`` that is no time
    """
    end: float | None = whole_number(environ.get(OWN) or environ.get(SLURM, ""))
    if environ.get(OWN):
        if end is None or end > now + FAR_S:
            raise UsageError(
                f"{OWN} is {environ[OWN]!r}; wanted the second at which the job ends, counted from 1970: "
                "$(($(date +%s) + SECONDS)) at the top of the job's script"
            )
    elif end is None and environ.get(JOB, "").isdigit():
        end = _moment(ask(environ[JOB]))
    is_past = end is not None and end <= now and not environ.get(OWN)
    return None if end is None or is_past or end > now + FAR_S else float(end)


def ask_squeue(job: str) -> str:
    """Return squeue's text about the job's end; empty if squeue is missing (in a container), or does not answer."""
    # A format of the user's own choice could not be read.
    command = ["env", "SLURM_TIME_FORMAT=standard", "squeue", "-h", "-j", job, "-o", "%e"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=ASKING_S).stdout.strip()
    return ""


def _moment(text: str) -> float | None:
    """Parse squeue's time, which is local; "N/A" and similar texts are no time."""
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(text).timestamp()
    return None
