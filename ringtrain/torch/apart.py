"""The group of all ranks as a replacement has it until it joins the others: of their size, and they take no part."""

from typing import Any

import numpy as np

from ringtrain.errors import UsageError


class ApartCommunicator:
    """A communicator of which this rank makes every collective alone: each other rank has the same as this one, and
    nothing is added. A script loads its state afterwards (:func:`ringtrain.torch.register`)."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def allreduce(self, array: np.ndarray, *arguments, **named) -> np.ndarray:
        return array

    def all_gather(self, array: np.ndarray, *, out: np.ndarray, **named) -> np.ndarray:
        out[...] = array
        return out

    def gather(self, array: np.ndarray, *, out: np.ndarray | None, **named) -> None:
        if out is not None:
            out[...] = array

    def reduce_scatter(self, array: np.ndarray, *arguments, out: np.ndarray, **named) -> np.ndarray:
        out[...] = array[self.rank]
        return out

    def broadcast(self, array: np.ndarray, **named) -> np.ndarray:
        return array

    def barrier(self, **named) -> None:
        """The others are not waited for."""

    def group(self, ranks, **named) -> "ApartCommunicator":
        return ApartCommunicator(list(ranks).index(self.rank), len(ranks))

    def leave(self, why: str) -> None:
        """It has nothing in flight."""

    set_deadline = leave
    close = barrier

    def __getattr__(self, name: str) -> Any:
        if name not in ("send", "recv", "scatter", "all_to_all"):
            raise AttributeError(name)
        raise UsageError(
            f"{name} in a rank that replaces a dead one: what another rank sends is not there before "
            "ringtrain.torch.register(); call register() before it"
        )
