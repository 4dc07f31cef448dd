"""Which device is whose: from what a process sees and its place on its node.

::
    mpirun, 4 GPUs a node       sees 4    local rank modulo 4
    srun --gpus-per-task 1      sees 1    that one
    CUDA_VISIBLE_DEVICES=2,3    sees 2    local rank modulo 2, of those

CUDA numbers the devices that a process sees from 0, whatever they are called on the machine; a mask (of the user, of
Slurm, of a container) has done its work by then. So there is one rule, and a device is told from others by its UUID.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ringtrain.errors import DeviceError

MASK = "CUDA_VISIBLE_DEVICES"
# What a scheduler says of the devices of a task, where it says so and does not set the mask itself.
GIVEN = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")


@dataclass(frozen=True, slots=True)
class Binding:
    """``index``: of the device among those ``visible``; ``why``: in words"""

    index: int
    visible: int
    why: str


@dataclass(frozen=True, slots=True)
class Bound:
    """One line of the table. ``node``: from 0; ``uuid``: of the device"""

    rank: int
    node: int
    local_rank: int
    index: int
    name: str
    uuid: str


def bind(environ: Mapping[str, str], visible: int, local_rank: int) -> Binding:
    """The device of the process with this rank on its node, which sees so many.

    Raises: DeviceError where it sees none
    """
    mask = environ.get(MASK)
    if not visible:
        raise DeviceError(_blind(environ, mask))
    of = f" of {MASK}={mask}" if mask is not None else ""
    if visible == 1:
        return Binding(0, 1, f"the one that it sees{of}")
    return Binding(local_rank % visible, visible, f"local rank {local_rank} modulo the {visible} that it sees{of}")


def _blind(environ: Mapping[str, str], mask: str | None) -> str:
    if mask is not None:
        told = f"{MASK} is {mask!r}, which names none that is here: unset it, or name devices that nvidia-smi -L lists"
    elif any(name in environ for name in GIVEN):
        told = "the job has some, and this task was given none: srun --gpus-per-task=1, or --gpus-per-node"
    elif any(name.startswith("SLURM_") for name in environ):
        told = "ask Slurm for them: --gpus-per-task=1 or --gpus-per-node of srun, salloc or sbatch"
    else:
        told = "nvidia-smi -L lists those of this machine; a container wants --gpus all"
    return f"--device cuda: this process sees no GPU: {told}; or use --device cpu"


def table(everyone: Sequence[Bound]) -> list[str]:
    """Who computes on what, a line a rank; and which ranks have one device between them."""
    lines = [
        f"rank {one.rank}: node {one.node}, local rank {one.local_rank}, device {one.index}, {one.name}, {one.uuid}"
        for one in everyone
    ]
    return [*lines, *(_shared(ranks) for ranks in sharing(everyone))]


def sharing(everyone: Sequence[Bound]) -> list[list[int]]:
    """Ranks that have one device between them, for each such device."""
    holders: dict[str, list[int]] = {}
    for one in everyone:
        holders.setdefault(one.uuid, []).append(one.rank)
    return [ranks for ranks in holders.values() if len(ranks) > 1]


def _shared(ranks: list[int]) -> str:
    return (
        f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} have one device, its time and its memory, between "
        "them: start as many ranks as there are GPUs"
    )


def to_json(one: Bound) -> dict:
    return asdict(one)
