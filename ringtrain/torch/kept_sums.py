"""Keeps the sums of the last exchange for the survivors of a death (``--elastic``): the dead rank may have sent enough
for the sums of some, and not of others.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ringtrain.errors import RingtrainError
from ringtrain.torch.module_arena import ModuleArena
from ringtrain.transport.base import Transport


class Survival(Protocol):
    """How an engine goes on after the death of a rank."""

    def survives(self, error: RingtrainError) -> bool:
        """Return whether a death caused the error, and the others go on."""

    def begin(self, engine: Any, sums: "KeptSums") -> None:
        """Let new ranks join before an exchange."""

    def recover(self, error: RingtrainError) -> None:
        """Move all engines to the survivors. Raises the error if it is of no death."""

    def weight(self) -> float:
        """Return by how much this iteration's gradients count more, since those of a dead rank are missing."""


class KeptSums:
    """A copy of the last sums that have arrived on this rank, of all parameters, and of rank 0's buffers.

    module: whose buffers are rank 0's; None: each rank keeps its own

    ``count``: of the iterations whose sums this rank has had. ``stops``: whether a rank was asked to stop in the last.
    """

    def __init__(self, arenas: Sequence[ModuleArena], module: torch.nn.Module | None):
        self.count, self.stops = 0, False
        self._module = module
        self._received = False  # from another rank: this rank's exchange was cut
        self._sums = [np.zeros_like(np.asarray(arena.arena.grads)) for arena in arenas]
        self._reached = np.zeros(sum(len(arena.parameters) for arena in arenas), bool)
        self._bytes = np.zeros(sum(buffer.nbytes for buffer in self._buffers()), np.uint8)

    def _buffers(self) -> list[torch.Tensor]:
        """Return the buffers that DDP would send. Scripts may assign others."""
        ignored = getattr(self._module, "_ddp_params_and_buffers_to_ignore", ())
        named = () if self._module is None else self._module.named_buffers()
        return [buffer for name, buffer in named if name not in ignored]

    def keep(self, arenas: Sequence[ModuleArena], reached: np.ndarray, stops: bool) -> None:
        """Keep the sums in the arenas. reached: whether a backward of any rank has reached each parameter"""
        for kept, arena in zip(self._sums, arenas, strict=True):
            np.copyto(kept, np.asarray(arena.arena.grads))
        self._reached[:], self.stops = reached, stops
        self.count, self._received = self.count + 1, False

    def share(self, transport: Transport, root: int, count: int) -> None:
        """Take the sums of a rank that has had so many. Collective."""
        flags = np.array([self.stops, *self._reached], np.uint8)
        for array in (*self._sums, self._bytes, flags):
            if array.size:
                transport.broadcast(array, root)
        self.stops, self._reached[:] = bool(flags[0]), flags[1:] > 0
        self._received |= self.count < count
        self.count = count

    def give(self, arenas: Sequence[ModuleArena]) -> np.ndarray:
        """Bring sums and buffers that another rank has sent to their places. Returns what was reached."""
        if self._received:
            self._put_buffers()
            for kept, arena in zip(self._sums, arenas, strict=True):
                np.copyto(np.asarray(arena.arena.grads), kept)
        return self._reached

    def send_buffers(self, transport: Transport) -> None:
        """Give all ranks the buffers of rank 0. Collective."""
        if not self._bytes.size:
            return
        if transport.rank == 0:
            parts = [buffer.detach().reshape(-1).view(torch.uint8) for buffer in self._buffers()]
            np.copyto(self._bytes, torch.cat(parts).numpy())
        transport.broadcast(self._bytes)
        if transport.rank:
            self._put_buffers()

    def _put_buffers(self) -> None:
        at = 0
        for buffer in self._buffers():
            row = torch.from_numpy(self._bytes[at : at + buffer.nbytes])
            buffer.data.copy_(row.clone().view(buffer.dtype).view(buffer.shape))  # autograd's versions stay
            at += buffer.nbytes
