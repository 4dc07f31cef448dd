"""Whether the ranks of a node see the same devices.

A process opens memory of another by CUDA's IPC only where it sees the device that the memory is on. Where each task is
shown its own device alone, an MPI that uses IPC fails ("cuIpcOpenMemHandle: invalid argument"), and a child of one
task, which sees what that one sees, would find nothing of it.
"""

from collections.abc import Mapping, Sequence

from ringtrain.transport import texts
from ringtrain.transport.cuda_aware.decision import NO, YES, Evidence
from ringtrain.transport.launch_environment import read_launch

MASK = "CUDA_VISIBLE_DEVICES"
PER_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")  # srun's --gpus-per-task and --gpu-bind


def sees(environ: Mapping[str, str]) -> str:
    """What this process says of the devices it is shown: the same words, the same devices, on one node."""
    if read_launch(environ).by == "srun":  # under mpirun they are what its daemons were told
        for name in PER_TASK:
            if environ.get(name, "none") != "none":
                return f"{name}={environ[name]} of task {environ.get('SLURM_PROCID')}"
    return f"{MASK}={environ[MASK]}" if MASK in environ else "all"


def sight(told: Sequence[tuple[int, str]]) -> Evidence:
    """One rung of all ranks' (node, :func:`sees`)."""
    for node in dict.fromkeys(node for node, _ in told):
        seen = list(dict.fromkeys(words for own, words in told if own == node))
        if len(seen) > 1:
            return Evidence("sight", NO, texts.DEVICES_DIFFER(node=node, first=seen[0], second=seen[1]))
    return Evidence("sight", YES, texts.DEVICES_ALIKE)
