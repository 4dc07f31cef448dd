"""Whether a network's weights fit into memory, before any is taken: a model file may name any size, and a system
promises memory that is not there, and ends whoever uses it."""

from pathlib import Path

from ringtrain.errors import ModelError
from ringtrain.humanize import format_bytes, plural
from ringtrain.launch.doctor.memory import whole_bytes
from ringtrain.nn.arena import lay_out
from ringtrain.nn.shapes import text
from ringtrain.ops.base import Ops
from ringtrain.transport.base import Transport


def check_room(table, ops: Ops, transport: Transport, trained: bool, root: Path = Path("/")) -> None:
    """Of all that there is, not of what is free: whoever else has some may give it back.

    table:   as an Arena's; trained: whether there will be gradients beside the weights

    Raises: ModelError, naming the largest weight
    """
    spans = lay_out(table)
    each = sum(span.count for span in spans) * ops.dtype.itemsize * (2 if trained else 1)
    device = ops.memory()
    ranks, there = (1, device[1]) if device is not None else (transport.local_size, whole_bytes(root))
    if there is None or each * ranks <= there:
        return
    largest = max(spans, key=lambda span: span.count)
    what = "weights and gradients" if trained else "weights"
    of = "of its device's memory" if device is not None else f"of memory on its host, for {plural(ranks, 'rank')}"
    raise ModelError(
        f"the network's {what} take {format_bytes(each)} on each rank, and there are {format_bytes(there)} {of}: most "
        f"is {largest.name}, {text(largest.shape)}; make that smaller, or take another model"
    )
