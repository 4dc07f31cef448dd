"""Checks, before the allocation, that a network's weights fit into memory: a model file may give any size, and a system
promises more memory than it has and kills the process that uses it."""

from pathlib import Path

from ringtrain.errors import ModelError
from ringtrain.humanize import format_bytes, plural
from ringtrain.launch.doctor.cgroup import whole_bytes
from ringtrain.memory.arena import lay_out
from ringtrain.nn.base import Parameter
from ringtrain.nn.shapes import format_shape
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


def check_room(
    table: tuple[tuple[str, Parameter], ...], ops: Ops, transport: Transport, trained: bool, root: Path = Path("/")
) -> None:
    """Raise ModelError, with the name of the largest weight, if weights need more than the whole memory. Memory in use
    counts, too: another process may free it.

    table: as an Arena's; trained: whether there are also gradients
    """
    spans = lay_out(table)
    each = sum(span.count for span in spans) * ops.dtype.itemsize * (2 if trained else 1)
    device = ops.memory()
    ranks, available = (1, device[1]) if device is not None else (transport.local_size, whole_bytes(root))
    if available is None or each * ranks <= available:
        return
    largest = max(spans, key=lambda span: span.count)
    what = "weights and gradients" if trained else "weights"
    memory = "its device's memory" if device is not None else f"memory on its host, for {plural(ranks, 'rank')}"
    raise ModelError(
        f"the network's {what} take {format_bytes(each)} on each rank, and there are {format_bytes(available)} of "
        f"{memory}: most is {largest.name}, {format_shape(largest.shape)}; make that smaller, or take another model"
    )
