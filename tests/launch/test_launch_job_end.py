"""When a job ends, by what schedulers say of it."""

import datetime
import os

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch.slurm.job_end import ask_squeue, job_end
from tests.says import says

NOW = datetime.datetime(2026, 3, 1, 12).timestamp()


def never(job):
    raise AssertionError(f"squeue was asked of {job}")


def test_no_job_has_no_end():
    assert job_end({}, never, NOW) is None
    assert job_end({"SLURM_JOB_ID": "", "SLURM_JOB_END_TIME": ""}, never, NOW) is None
    assert job_end({"SLURM_JOB_END_TIME": "²"}, never, NOW) is None


def test_what_a_job_script_says_comes_first():
    assert job_end({"RINGTRAIN_JOB_END": "170", "SLURM_JOB_END_TIME": "160", "SLURM_JOB_ID": "7"}, never, 100) == 170


@pytest.mark.parametrize("text", ["soon", "-5", "1e9", "2026-03-01", "²", "9" * 17, "9" * 400])
def test_a_job_script_that_says_no_time_is_refused(text):
    with pytest.raises(UsageError, match=says("RINGTRAIN_JOB_END", f"{text!r}")):
        job_end({"RINGTRAIN_JOB_END": text}, never, NOW)


def test_slurm_says_it_in_a_variable_or_is_asked():
    assert job_end({"SLURM_JOB_END_TIME": str(int(NOW) + 60), "SLURM_JOB_ID": "7"}, never, NOW) == NOW + 60
    asked = []

    def ask(job):
        asked.append(job)
        return "2026-03-01T14:30:00"

    assert job_end({"SLURM_JOB_ID": "7"}, ask, NOW) == NOW + 2.5 * 3600
    assert asked == ["7"]


@pytest.mark.parametrize("answer", ["", "N/A", "NONE", "slurm_load_jobs error: Invalid job id specified"])
def test_no_answer_is_no_end(answer):
    assert job_end({"SLURM_JOB_ID": "7"}, lambda job: answer, NOW) is None


def test_a_job_without_a_limit_has_no_end():
    far = (datetime.datetime.fromtimestamp(NOW) + datetime.timedelta(days=36500)).isoformat(timespec="seconds")
    assert job_end({"SLURM_JOB_ID": "7"}, lambda job: far, NOW) is None
    assert job_end({"SLURM_JOB_END_TIME": "4294967294"}, never, NOW) is None


def test_squeue_is_asked_in_its_standard_format(tmp_path, monkeypatch):
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\necho "$SLURM_TIME_FORMAT $*"\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    assert ask_squeue("12") == "standard -h -j 12 -o %e"


def test_without_squeue_there_is_no_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_squeue("12") == ""
