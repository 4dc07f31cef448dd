"""The launcher of ranks from one process: which one, with which words, and its end."""

import os
import signal
import subprocess

import pytest

from ringtrain.errors import UsageError
from ringtrain.launch import mpirun
from ringtrain.launch.mpirun import BEYOND_CORES, find_launcher, run_to_file
from tests.says import says


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """installed(mpirun="what it says", srun=...) → an environment with these programs alone, on two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))

    def install(**programs):
        for name, output in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": str(tmp_path)}

    return install


OPEN_MPI = "mpirun (Open MPI) 5.0.8"


@pytest.mark.parametrize(
    ("version", "environ", "ranks", "flags"),
    [
        (OPEN_MPI, {}, 2, ()),
        (OPEN_MPI, {}, 3, BEYOND_CORES),
        (OPEN_MPI, {"SLURM_JOB_ID": "7"}, 3, ()),  # a job and another MPI decide for themselves
        ("HYDRA build details", {}, 3, ()),
        ("x", {"PATH": "/nowhere"}, 2, ()),  # it is beside Python
    ],
)
def test_open_mpi_is_told_of_more_ranks_than_cores(installed, tmp_path, version, environ, ranks, flags):
    start = find_launcher(None, {**installed(mpirun=version), **environ})
    assert start(ranks) == [f"{tmp_path}/mpirun", "-np", str(ranks), *flags]


def test_a_job_without_mpirun_has_srun(installed):
    environ = installed(srun="slurm 24.05")
    assert find_launcher(None, {**environ, "SLURM_JOB_ID": "7"})(4) == ["srun", "-n", "4"]
    with pytest.raises(UsageError, match=says("no mpirun", "--launcher")):
        find_launcher(None, environ)


def test_a_users_launcher_has_the_number_of_ranks():
    assert find_launcher("env 'A=b c' N={ranks}", {})(4) == ["env", "A=b c", "N=4"]


@pytest.mark.parametrize(
    ("asked", "environ", "message"),
    [
        ("srun -n", {}, says("--launcher", "'srun -n'")),
        ("nosuch -n {ranks}", {}, says("--launcher", "'nosuch -n {ranks}'", "nosuch")),
        ("srun '{ranks}", {}, says("--launcher", '"srun \'{ranks}"')),
        (None, {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, says("without mpirun")),
    ],
)
def test_launchers_that_cannot_be(asked, environ, message):
    with pytest.raises(UsageError, match=message):
        find_launcher(asked, environ)


def test_the_output_is_in_a_file(tmp_path):
    assert run_to_file(["sh", "-c", "echo out; echo err >&2; exit 3"], tmp_path / "o.txt") == 3
    assert sorted((tmp_path / "o.txt").read_text().split()) == ["err", "out"]


def test_a_command_does_not_outlive_the_wait_for_it(tmp_path, monkeypatch):
    seen = []
    wait = subprocess.Popen.wait

    def told_once(process, timeout=None):
        seen.append(process)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", told_once)
    with pytest.raises(KeyboardInterrupt):
        run_to_file(["sleep", "600"], tmp_path / "o.txt")
    assert seen[0].returncode == -signal.SIGTERM
