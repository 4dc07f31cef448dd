"""The device of each process, from the devices it sees and its place on its node.

::
    mpirun, 4 GPUs a node       sees 4    local rank modulo 4
    srun --gpus-per-task 1      sees 1    that one
    CUDA_VISIBLE_DEVICES=2,3    sees 2    local rank modulo 2, of those

CUDA numbers the devices that a process sees from 0, after any mask (of the user, of Slurm, of a container). So there is
one rule, and the UUID identifies a device.
"""

from collections.abc import Mapping, Sequence

from ringtrain.errors import DeviceError

MASK = "CUDA_VISIBLE_DEVICES"
# A scheduler's variables for the devices of a task; some set them without the mask.
GIVEN = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")


Bound = tuple[int, int, int, str, str]  # node, from 0; local rank; its device, with name and UUID


def bind(environ: Mapping[str, str], visible: int, local_rank: int) -> int:
    """Return the device of the process with this local rank, by its number among ``visible`` devices.

    Raises: DeviceError if it sees none
    """
    if visible:
        return local_rank % visible
    if MASK in environ:
        hint = f"{MASK} is {environ[MASK]!r}, which names no device: unset it, or name devices that nvidia-smi -L lists"
    elif any(name in environ for name in GIVEN):
        hint = "the job has some, but this task got none: srun --gpus-per-task=1, or --gpus-per-node"
    elif any(name.startswith("SLURM_") for name in environ):
        hint = "ask Slurm for them: --gpus-per-task=1 or --gpus-per-node of srun, salloc or sbatch"
    else:
        hint = "nvidia-smi -L lists those of this machine; a container needs --gpus all"
    raise DeviceError(f"--device cuda: this process sees no GPU: {hint}; or use --device cpu")


def binding_table(everyone: Sequence[Bound]) -> list[str]:
    """Return the device of each rank, a line a rank, and notes on ranks that share a device."""
    table = [
        f"rank {rank}: node {node}, local rank {local_rank}, device {index}, {name}, {uuid}"
        for rank, (node, local_rank, index, name, uuid) in enumerate(everyone)
    ]
    notes = [
        f"ranks {', '.join(map(str, ranks))} and {last} share one device, its time and its memory: start as many ranks "
        "as there are GPUs"
        for *ranks, last in sharing_ranks([uuid for *_, uuid in everyone])
    ]
    return table + notes


def sharing_ranks(uuids: Sequence[str | None]) -> list[list[int]]:
    """Return the ranks of each device that several ranks share. ``uuids``: of each rank's device; None: without one"""
    holders = ([rank for rank, each in enumerate(uuids) if each == uuid] for uuid in dict.fromkeys(uuids) if uuid)
    return [ranks for ranks in holders if len(ranks) > 1]
