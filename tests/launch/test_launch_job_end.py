"""When a job ends, by what schedulers say of it."""

import datetime
import os

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch.slurm.job_end import ask_squeue, job_end
from tests.says import says

NOW = datetime.datetime(2026, 3, 1, 12).timestamp()


FAR = (datetime.datetime.fromtimestamp(NOW) + datetime.timedelta(days=36500)).isoformat(timespec="seconds")


@pytest.mark.parametrize(
    ("environ", "answer", "end"),
    [
        ({}, None, None),
        ({"SLURM_JOB_ID": "", "SLURM_JOB_END_TIME": ""}, None, None),
        ({"SLURM_JOB_END_TIME": "²"}, None, None),
        ({"SLURM_JOB_END_TIME": "4294967294"}, None, None),  # of a job without a limit
        ({"RINGTRAIN_JOB_END": "170", "SLURM_JOB_END_TIME": "160", "SLURM_JOB_ID": "7"}, None, 170),
        ({"SLURM_JOB_END_TIME": str(int(NOW) + 60), "SLURM_JOB_ID": "7"}, None, NOW + 60),
        ({"SLURM_JOB_END_TIME": str(int(NOW) - 60), "SLURM_JOB_ID": "7"}, None, None),  # a shell that outlived its job
        ({"SLURM_JOB_ID": "7"}, "2026-03-01T11:59:00", None),
        ({"SLURM_JOB_ID": "7"}, "2026-03-01T14:30:00", NOW + 2.5 * 3600),
        ({"SLURM_JOB_ID": "7"}, FAR, None),
        *(({"SLURM_JOB_ID": "7"}, answer, None) for answer in ("", "N/A", "NONE", "slurm_load_jobs error: Invalid")),
    ],
)
def test_a_jobs_script_says_when_it_ends_or_slurm_does_or_is_asked(environ, answer, end):
    asked = []

    def ask(job):
        asked.append(job)
        return answer

    assert job_end(environ, ask, NOW) == end
    assert asked == ([] if answer is None else ["7"])


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "2026-03-01", "²", "9" * 17, "9" * 400])
def test_a_job_script_that_says_no_time_is_refused(text):
    with pytest.raises(UsageError, match=says("RINGTRAIN_JOB_END", f"{text!r}")):
        job_end({"RINGTRAIN_JOB_END": text}, str, NOW)


def test_squeue_is_asked_in_its_standard_format(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\necho "$SLURM_TIME_FORMAT $*"\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    assert ask_squeue("12") == "standard -h -j 12 -o %e"
    monkeypatch.setenv("PATH", "/nowhere")
    assert ask_squeue("12") == ""
