"""Check that the ranks of a node see the same devices.

A process opens memory of another process by CUDA's IPC only if it sees that memory's device. If each task sees only its
own device, an MPI that uses IPC fails ("cuIpcOpenMemHandle: invalid argument"). A child of one task sees the same
devices as that task, so it cannot find this out.
"""

from collections.abc import Mapping, Sequence

from ringtrain.transport.cuda_aware.decision import NO, YES, Evidence
from ringtrain.transport.launch_environment import read_launch

MASK = "CUDA_VISIBLE_DEVICES"
PER_TASK = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")  # srun's --gpus-per-task and --gpu-bind


def device_names(environ: Mapping[str, str]) -> str:
    """Return this process's variables for visible devices as text: equal texts mean equal devices on one node."""
    if read_launch(environ).by == "srun":  # under mpirun its daemons' variables stand there
        for name in PER_TASK:
            if environ.get(name, "none") != "none":
                return f"{name}={environ[name]} of task {environ.get('SLURM_PROCID')}"
    return f"{MASK}={environ[MASK]}" if MASK in environ else "all"


def visibility_evidence(devices: Sequence[tuple[int, str]]) -> Evidence:
    """Return one answer for all ranks' (node, :func:`device_names`)."""
    for node in dict.fromkeys(node for node, _ in devices):
        names = list(dict.fromkeys(words for rank_node, words in devices if rank_node == node))
        if len(names) > 1:
            return Evidence(
                "sight",
                NO,
                (
                    f"ranks of node {node} see different devices ({names[0]}; {names[1]}), and CUDA IPC may fail "
                    "between them"
                ),
            )
    return Evidence("sight", YES, "the ranks of a node see the same devices")
