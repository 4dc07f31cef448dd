"""What batch systems say of a job, and where ranks do not fit what it was given."""

import pytest

from ringtrain.launch.doctor import scheduler
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line
from ringtrain.launch.doctor.scheduler import RunningJob, read_job, total_tasks
from tests.fakes.doctor_context import line_of
from tests.says import says

SLURM = {"SLURM_JOB_ID": "71", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4", "SLURM_JOB_END_TIME": "10000"}


def never(number):
    raise AssertionError("nobody is to be asked")


def test_no_job():
    assert read_job({"SLURM_JOB_ID": ""}, never, 0) is None


def test_slurm_tells_nodes_tasks_and_the_end():
    assert read_job(SLURM, never, 6400.0) == RunningJob("Slurm", "71", 2, 4, None, 3600.0)
    older = {"SLURM_JOB_ID": "71", "SLURM_NNODES": "3", "SLURM_TASKS_PER_NODE": "2(x2),1", "SLURM_CPUS_PER_TASK": "8"}
    assert read_job(older, lambda number: "1970-01-01T00:00:05+00:00", 0) == RunningJob("Slurm", "71", 3, 5, 8, 5.0)
    assert read_job(older, lambda number: "N/A", 0) == RunningJob("Slurm", "71", 3, 5, 8, None)


def test_the_end_is_that_by_which_a_run_stops():
    own = {"RINGTRAIN_JOB_END": "100"}
    assert read_job({**SLURM, **own}, never, 40.0).left_s == 60.0
    assert read_job({"PBS_JOBID": "9", **own}, never, 40.0) == RunningJob("PBS", "9", left_s=60.0)


@pytest.mark.parametrize("text, total", [("2(x3),1", 7), ("4", 4), ("", None), ("2(x", None), ("a", None)])
def test_tasks_by_node(text, total):
    assert total_tasks(text) == total


def test_pbs_tells_by_a_file(tmp_path):
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    environ = {"PBS_JOBID": "9.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert read_job(environ, never, 0) == RunningJob("PBS", "9.server", 2, 4)
    torque = {"PBS_JOBID": "9", "PBS_NODEFILE": str(tmp_path / "gone"), "PBS_NUM_NODES": "3", "PBS_NP": "12"}
    assert read_job(torque, never, 0) == RunningJob("PBS", "9", 3, 12)
    assert read_job({"PBS_JOBID": "9"}, never, 0) == RunningJob("PBS", "9")


def test_lsf_tells_hosts_and_slots():
    environ = {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1 4 n2 2"}
    assert read_job(environ, never, 0) == RunningJob("LSF", "5", 2, 6)
    assert read_job({"LSB_JOBID": "5", "LSB_DJOB_NUMPROC": "8"}, never, 0) == RunningJob("LSF", "5", None, 8)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """job(size, nodes, variables) → the line, at time 0, on four cores."""
    monkeypatch.setattr(scheduler.time, "time", lambda: 0.0)
    monkeypatch.setattr(scheduler.os, "sched_getaffinity", lambda process: {0, 1, 2, 3})

    def line(size, nodes, **variables):
        return line_of(scheduler.scheduler, tmp_path, size, nodes=nodes, environ={**SLURM, **variables})

    return line


def test_a_world_of_the_whole_job_is_well(job):
    assert job(4, 2) == Line(OK, "batch system", "Slurm job 71: 2 nodes, 4 tasks, 2 h 46 min left")
    assert job(6, 2).status == OK


def test_nodes_or_tasks_without_ranks_are_a_warning(job):
    line = job(4, 1)
    assert line.status == WARN and line.text.endswith("; ranks are on 1 of them") and line.advice == says("--host")
    line = job(2, 2)
    assert line.status == WARN and line.text.endswith("; there are 2 ranks") and line.advice == says("many", "srun")


def test_fewer_cores_than_a_task_was_given_are_a_warning(job):
    line = job(4, 2, SLURM_CPUS_PER_TASK="8")
    assert (line.status, line.text) == (WARN, says("8 cores", "runs on 4"))
    assert line.advice == says("--map-by", "PE=8", "--cpus-per-task=8")
    assert job(4, 2, SLURM_CPUS_PER_TASK="4").status == OK


def test_an_end_that_is_near_is_a_warning(job):
    line = job(4, 2, SLURM_JOB_END_TIME="119")
    assert line.status == WARN and line.text.endswith("1 min left; it ends soon") and line.advice == says("--time")
    assert job(4, 2, SLURM_JOB_END_TIME="120").status == OK


def test_an_end_that_is_no_time_is_a_failure(job):
    line = job(4, 2, RINGTRAIN_JOB_END="soon")
    assert (line.status, line.text) == (FAIL, says("RINGTRAIN_JOB_END", "'soon'"))


def test_all_that_is_wrong_is_one_line(job):
    line = job(4, 1, SLURM_JOB_END_TIME="0", SLURM_CPUS_PER_TASK="8")
    assert line.text == says("0 min left; ", "on 1 of them; ", "8 cores", "runs on 4; ", "ends soon")
    assert line.advice.count(";") == 2


def test_the_daemons_of_mpirun_are_no_tasks():
    step = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}
    assert read_job(step, never, 0).tasks == 2
    under = {**step, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
    assert read_job(under, never, 0).tasks is None


def test_outside_of_a_job_the_launcher_is_told(tmp_path):
    assert line_of(scheduler.scheduler, tmp_path, 2) == Line(OK, "batch system", "none")
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    line = line_of(scheduler.scheduler, tmp_path, 2, environ=environ)
    assert line == Line(OK, "batch system", says("mpirun"))


def test_a_list_of_nodes_that_cannot_be_read_is_none(tmp_path):
    (tmp_path / "bytes").write_bytes(b"n1\n\xff\n")
    for file, tasks in (("x" * 5000, None), (str(tmp_path), None), (str(tmp_path / "bytes"), 2)):
        assert read_job({"PBS_JOBID": "7", "PBS_NODEFILE": file, "PBS_NP": "²"}, lambda job: "", 0).tasks == tasks
