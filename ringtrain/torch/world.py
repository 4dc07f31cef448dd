"""The world of this process for PyTorch: one transport, its store, and the communicators of its process groups."""

import atexit
import math
import os
import sys
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from ringtrain.allreduce.catalogue import AUTO
from ringtrain.api.communicator import Communicator
from ringtrain.api.methods import LAST_TAG
from ringtrain.api.usable import LEAVING
from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.launch.python_script import asked_deadline
from ringtrain.monitor.guarded_transport import guard_of
from ringtrain.torch.apart import ApartCommunicator
from ringtrain.torch.backend import RingtrainGroup
from ringtrain.torch.call_order import CallOrder
from ringtrain.torch.mixed import MixedGroup
from ringtrain.torch.store import WorldStore
from ringtrain.transport.base import Transport
from ringtrain.transport.key_value import KeyValueStore
from ringtrain.transport.world import World, connect


class TorchWorld:
    """The ranks of the MPI as PyTorch uses them.

    config:     how communicators and DDP exchange
    deadline_s: of the communicators; None for the timeout that a script gives to PyTorch
    place:      (rank, size) of a process that does not exchange with the others yet; None: those of the transport
    """

    def __init__(
        self,
        transport: Transport,
        config: ExchangeConfig | None = None,
        deadline_s: float | None = None,
        place: tuple[int, int] | None = None,
    ):
        self.transport, self.config, self._deadline_s = transport, config or ExchangeConfig(), deadline_s
        self._place = place
        self._store: WorldStore | None = None
        self._communicator: Communicator | ApartCommunicator | None = None
        self.patience_s = 0.0  # of the group of all ranks
        self._order: CallOrder  # of the group of all ranks
        self.survival: Any = None  # with --elastic its ScriptSurvival
        self._starts = 0
        self._process = os.getpid()

    def rendezvous(self) -> tuple[dist.Store, int, int]:
        """Return the store, the rank and the size, for one start of process groups. Collective."""
        self._check_process()
        if self._store is None:
            self._store = WorldStore(KeyValueStore(self.transport))
        self._starts += 1  # the keys of an earlier start are still there
        return dist.PrefixStore(f"start {self._starts}", self._store), *self.place

    @property
    def is_apart(self) -> bool:
        """Whether this process does not exchange with the others yet."""
        return self._place is not None

    @property
    def place(self) -> tuple[int, int]:
        """(rank, size)"""
        return self._place or (self.transport.rank, self.transport.size)

    def group(self, options, others: dist.ProcessGroup | None) -> RingtrainGroup:
        """Return a process group for the options of PyTorch's registry. Collective over its ranks. ``others``: takes
        the tensors of other devices."""
        self._check_process()
        ranks = list(options.global_ranks_in_group)
        if not ranks:
            self._communicator = self._whole(options)
        name = options.group_id
        asked_s = None if options.timeout == default_pg_timeout else options.timeout.total_seconds()

        def make(depth: int) -> Communicator | ApartCommunicator:
            world = self._communicator
            assert world is not None, "PyTorch makes the group of all ranks first"
            if not ranks and not depth:
                return world
            tag = 1 + crc32(f"{name} {depth}".encode()) % LAST_TAG if depth else 0
            communicator = world.group(ranks or range(world.size), deadline_s=self._deadline_s or asked_s, tag=tag)
            assert communicator is not None, "PyTorch asks on ranks of the group alone"
            return communicator

        order = CallOrder(make)
        if not ranks:
            self._order = order
        fixed = self.config.reproducible
        if others is None:
            return RingtrainGroup(order, options, fixed)
        return MixedGroup(order, options, others, fixed)

    def group_of(self, ranks: Sequence[int]) -> Transport:
        """Return a transport of these ranks, which this one is among. Collective over them."""
        transport = self.transport.group(ranks)
        assert transport is not None, "this rank is in the group of its module"
        transport.activity = self.transport.activity
        return transport

    def move(self, transport: Transport) -> None:
        """Go on among these ranks after a death. The store is empty then, and other groups than that of all ranks are
        of no more use. Collective."""
        for communicator in list(LEAVING):
            communicator.abandon(
                "a rank of the world in which this group was made has died: use the group of all ranks, or make this "
                "one again with new_group()"
            )
        self.transport, self._place = transport, None
        if self._store is not None:
            self._store.keys.leave()
            self._store.keys = KeyValueStore(transport)
        if self._communicator is not None:
            self._communicator = self._communicator_over(transport)
            self._order.move()

    def _whole(self, options) -> Communicator | ApartCommunicator:
        self.check_rank(options.group_rank, options.group_size)
        self.patience_s = self._deadline_s or options.timeout.total_seconds()
        if self._place is not None:
            return ApartCommunicator(*self._place)
        transport: Transport | None = self.transport
        if self._communicator is not None:  # its last call may be cut, and must not meet one of the next
            transport = self.transport.group(range(self.transport.size))
        communicator = self._communicator_over(transport)
        communicator._owned = transport is not self.transport
        return communicator

    def _communicator_over(self, transport: Transport | None) -> Communicator:
        tuning, checks, deadline_s = self.config.tuning, self.config.check_collectives, self.patience_s
        algorithm = AUTO if self.config.reproducible else self.config.algorithm  # groups add in one tree then
        return Communicator(transport, algorithm, tuning=tuning, check_collectives=checks, deadline_s=deadline_s)

    def check_rank(self, rank: int | None, size: int | None) -> None:
        """Raise UsageError for another rank or number of ranks than the MPI has; None is right."""
        actual = self.place
        if (actual[0] if rank is None else rank, actual[1] if size is None else size) != actual:
            raise UsageError(
                f"init_process_group got rank {rank} of {size}, and the MPI says rank {actual[0]} of {actual[1]}: "
                "leave rank and world_size out, or start the script by mpirun or srun alone"
            )

    def leave(self) -> None:
        """End the process groups that the script has left, and the store. Collective."""
        if not self.is_of_this_process:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._store is not None:
            self._store.keys.close()
            self._store = None

    @property
    def is_of_this_process(self) -> bool:
        """Whether this is the process of the rank, and not one that it has forked."""
        return os.getpid() == self._process

    def _check_process(self) -> None:
        if not self.is_of_this_process:
            raise UsageError(
                f"this process was forked from rank {self.transport.rank} of the MPI, and is no rank itself: start "
                "ranks by mpirun or srun, not by torch.multiprocessing"
            )


def enter_world(world: World) -> Transport:
    """Return the transport of this process's world. Its waits are longer than those in the midst of the script, which
    name a rank first. Collective."""
    transport = world.enter()
    guard = guard_of(transport)
    if guard is not None:
        guard.deadline_s = 2 * (asked_deadline(os.environ) or math.inf)
    return transport


_current: TorchWorld | None = None


def current() -> TorchWorld:
    """Return the world of this process; connect it at the first call, which is collective then."""
    if _current is None:
        enter(TorchWorld(connect(), deadline_s=asked_deadline(os.environ)))
        atexit.register(_leave_at_exit)
    assert _current is not None
    return _current


def enter(world: TorchWorld) -> None:
    """Make it the world of this process."""
    global _current
    _current = world


def _leave_at_exit() -> None:
    world = current()
    if not world.is_of_this_process:
        return
    if getattr(sys, "last_value", None) is not None and world.transport.size > 1:
        world.transport.abort(1)  # the script has ended by an exception, and the other ranks may wait for it
    world.leave()
    world.transport.close()
