"""Which device is whose, by what launchers set and what a process then sees."""

import pytest

from ringtrain.errors import DeviceError
from ringtrain.launch.binding import Binding, Bound, bind, sharing, table

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
# srun --ntasks-per-node 4 --gpus-per-task 1: each task sees its own, as device 0.
SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}


def test_ranks_of_mpirun_take_the_devices_of_their_node_in_turn():
    assert [bind(MPIRUN, 4, local).index for local in range(4)] == [0, 1, 2, 3]
    assert [bind(MPIRUN, 2, local).index for local in range(5)] == [0, 1, 0, 1, 0]
    assert bind(MPIRUN, 4, 3) == Binding(3, 4, "local rank 3 modulo the 4 that it sees")


def test_a_task_of_srun_has_the_one_that_it_was_given():
    assert bind(SRUN, 1, 3) == Binding(0, 1, "the one that it sees of CUDA_VISIBLE_DEVICES=0")
    assert [bind({"SLURM_LOCALID": str(local)}, 1, local).index for local in range(4)] == [0] * 4


def test_a_mask_has_done_its_work_when_devices_are_counted():
    masked = {**MPIRUN, "CUDA_VISIBLE_DEVICES": "6,7"}
    found = [bind(masked, 2, local) for local in range(4)]
    assert [one.index for one in found] == [0, 1, 0, 1]
    assert found[1].why == "local rank 1 modulo the 2 that it sees of CUDA_VISIBLE_DEVICES=6,7"


@pytest.mark.parametrize(
    ("environ", "advice"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is '', which names none that is here: unset it, or name"),
        ({**SRUN, "CUDA_VISIBLE_DEVICES": "9"}, "CUDA_VISIBLE_DEVICES is '9', which names none that is here"),
        (
            {"SLURM_PROCID": "0", "SLURM_JOB_GPUS": "0,1"},
            "the job has some, and this task was given none: srun --gpus-per-task=1",
        ),
        ({"SLURM_PROCID": "0"}, "ask Slurm for them: --gpus-per-task=1 or --gpus-per-node"),
        (MPIRUN, "nvidia-smi -L lists those of this machine; a container wants --gpus all"),
    ],
)
def test_a_process_that_sees_none_is_told_what_to_do(environ, advice):
    with pytest.raises(DeviceError) as error:
        bind(environ, 0, 0)
    assert str(error.value).startswith(f"--device cuda: this process sees no GPU: {advice}")
    assert str(error.value).endswith("or use --device cpu")


def test_the_table_says_who_shares():
    ranks = [Bound(rank, rank // 3, rank % 3, rank % 2, "H200", f"GPU-{rank // 3}{rank % 3 % 2}") for rank in range(6)]
    lines = table(ranks)
    assert lines[4] == "rank 4: node 1, local rank 1, device 0, H200, GPU-11"
    assert sharing(ranks) == [[0, 2], [3, 5]]
    assert lines[6].startswith("ranks 0 and 2 have one device, its time and its memory, between them: start as many")
    assert table(ranks[:2]) == lines[:2]
    everyone_on_one = [Bound(rank, 0, rank, 0, "H200", "GPU-a") for rank in range(3)]
    assert table(everyone_on_one)[-1].startswith("ranks 0, 1 and 2 have one device")
