"""The device of each process, from the devices it sees and its place on its node.

::
    mpirun, 4 GPUs a node       sees 4    local rank modulo 4
    srun --gpus-per-task 1      sees 1    that one
    CUDA_VISIBLE_DEVICES=2,3    sees 2    local rank modulo 2, of those

CUDA numbers the devices that a process sees from 0, after any mask (of the user, of Slurm, of a container). So there is
one rule, and the UUID identifies a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringtrain.errors import DeviceError

MASK = "CUDA_VISIBLE_DEVICES"
# A scheduler's variables for the devices of a task; some set them without the mask.
GIVEN = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")


@dataclass(frozen=True, slots=True)
class Bound:
    """One line of the table. ``node``: from 0; ``uuid``: of the device"""

    rank: int
    node: int
    local_rank: int
    index: int
    name: str
    uuid: str


def bind(environ: Mapping[str, str], visible: int, local_rank: int) -> int:
    """Return the device of the process with this local rank, by its number among ``visible`` devices.

    Raises: DeviceError if it sees none
    """
    if visible:
        return local_rank % visible
    if MASK in environ:
        hint = (
            f"{MASK} is {environ[MASK]!r}, which names no device of this machine: unset it, or name devices that "
            "nvidia-smi -L lists"
        )
    elif any(name in environ for name in GIVEN):
        hint = "the job has some, but this task got none: srun --gpus-per-task=1, or --gpus-per-node"
    else:
        on_slurm = any(name.startswith("SLURM_") for name in environ)
        hint = (
            "ask Slurm for them: --gpus-per-task=1 or --gpus-per-node of srun, salloc or sbatch"
            if on_slurm
            else "nvidia-smi -L lists those of this machine; a container needs --gpus all"
        )
    raise DeviceError(f"--device cuda: this process sees no GPU: {hint}; or use --device cpu")


def binding_table(everyone: Sequence[Bound]) -> list[str]:
    """Return the device of each rank, a line a rank, and notes on ranks that share a device."""
    lines = [
        f"rank {one.rank}: node {one.node}, local rank {one.local_rank}, device {one.index}, {one.name}, {one.uuid}"
        for one in everyone
    ]
    for *ranks, last in sharing_ranks(everyone):
        lines.append(
            f"ranks {', '.join(map(str, ranks))} and {last} share one device, its time and its memory: start as many "
            "ranks as there are GPUs"
        )
    return lines


def sharing_ranks(everyone: Sequence[Bound]) -> list[list[int]]:
    """Return the ranks of each device that several ranks share."""
    holders: dict[str, list[int]] = {}
    for one in everyone:
        holders.setdefault(one.uuid, []).append(one.rank)
    return [ranks for ranks in holders.values() if len(ranks) > 1]
