"""Which device is whose, by what launchers set and what a process then sees."""

import pytest

from ringtrain.errors import DeviceError
from ringtrain.launch.binding import bind, binding_table, sharing_ranks
from tests.says import says

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
# srun --ntasks-per-node 4 --gpus-per-task 1: each task sees its own, as device 0.
SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("environ", "visible", "numbers"),
    [
        (MPIRUN, 4, [0, 1, 2, 3]),
        (MPIRUN, 2, [0, 1, 0, 1]),
        (SRUN, 1, [0, 0, 0, 0]),  # each task sees the one that it was given
        ({**MPIRUN, "CUDA_VISIBLE_DEVICES": "6,7"}, 2, [0, 1, 0, 1]),  # of a mask, too, they count from 0
    ],
)
def test_ranks_take_the_devices_that_they_see_in_turn(environ, visible, numbers):
    assert [bind(environ, visible, local) for local in range(4)] == numbers


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, says("CUDA_VISIBLE_DEVICES", "''")),
        ({**SRUN, "CUDA_VISIBLE_DEVICES": "9"}, says("CUDA_VISIBLE_DEVICES", "'9'")),
        ({"SLURM_PROCID": "0", "SLURM_JOB_GPUS": "0,1"}, says("this task", "--gpus-per-task", "--gpus-per-node")),
        ({"SLURM_PROCID": "0"}, says("Slurm", "--gpus-per-task", "--gpus-per-node")),
        (MPIRUN, says("nvidia-smi", "--gpus all")),
    ],
)
def test_a_process_that_sees_none_is_told_what_to_do(environ, advice):
    with pytest.raises(DeviceError, match=says("--device cuda", advice)):
        bind(environ, 0, 0)


def test_the_table_says_who_shares():
    assert sharing_ranks(["a", None, "b", "a", None, "c", "b"]) == [[0, 3], [2, 6]]
    ranks = [(rank // 3, rank % 3, rank % 2, "H200", f"GPU-{rank // 3}{rank % 3 % 2}") for rank in range(6)]
    lines = binding_table(ranks)
    assert lines[4] == "rank 4: node 1, local rank 1, device 0, H200, GPU-11"
    assert lines[6:] == [says("ranks 0 and 2", "GPUs"), says("ranks 3 and 5", "GPUs")]
    assert binding_table(ranks[:2]) == lines[:2]
    assert binding_table([(0, rank, rank, "H200", "GPU-a") for rank in range(3)])[-1] == says("ranks 0, 1 and 2")
