"""The time at which the scheduler will end this process's job.

::
    RINGTRAIN_JOB_END      seconds since 1970; a job script sets it, under any scheduler
    SLURM_JOB_END_TIME     the same, of Slurm 23.02 and later
    SLURM_JOB_ID           the query for an older Slurm: squeue -h -j ID -o %e
"""

import datetime
import subprocess
from collections.abc import Callable, Mapping

from ringtrain.errors import UsageError
from ringtrain.parsing import whole_number

OWN, SLURM, JOB = "RINGTRAIN_JOB_END", "SLURM_JOB_END_TIME", "SLURM_JOB_ID"
NUMBERS = (JOB, "PBS_JOBID", "LSB_JOBID")  # of jobs: Slurm, PBS (also Torque), LSF
ASKING_S = 20  # a busy Slurm is slow
FAR_S = 10 * 365 * 86400  # Slurm uses an end beyond this for none

Ask = Callable[[str], str]  # the number of a job → when it ends, in squeue's words


def job_number(environ: Mapping[str, str]) -> str | None:
    """Return the number of this process's batch job."""
    return next((environ[name] for name in NUMBERS if environ.get(name)), None)


def job_end(environ: Mapping[str, str], ask: Ask, now: float) -> float | None:
    """Return the job's end in seconds since 1970; None if there is no job, or no end.

    Raises: UsageError for a ``RINGTRAIN_JOB_END`` that is no time
    """
    setting = environ.get(OWN)
    if setting:
        return _said(setting, now)
    slurm_end = whole_number(environ.get(SLURM, ""))
    if slurm_end is not None:
        return _near(float(slurm_end), now)
    return _near(_moment(ask(environ[JOB])), now) if environ.get(JOB, "").isdigit() else None


def _said(text: str, now: float) -> float:
    end = whole_number(text)
    if end is None or end > now + FAR_S:
        raise UsageError(
            f"{OWN} is {text!r}; wanted the second at which the job ends, counted from 1970: $(($(date +%s) + "
            "SECONDS)) at the top of the job's script"
        )
    return float(end)


def ask_squeue(job: str) -> str:
    """Return squeue's text about the job's end; empty if squeue is missing (in a container), or does not answer."""
    command = ["squeue", "-h", "-j", job, "-o", "%e"]
    try:
        # A format of the user's own choice could not be read.
        command = ["env", "SLURM_TIME_FORMAT=standard", *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKING_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _moment(text: str) -> float | None:
    """Parse squeue's time, which is local; "N/A" and similar texts are no time."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _near(end: float | None, now: float) -> float | None:
    return None if end is None or end > now + FAR_S else end
