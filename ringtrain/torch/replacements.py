"""Names of PyTorch that this package replaces.

By ``import ringtrain.torch``:

* a backend "ringtrain" joins PyTorch's registry, and is the last that is made of a group with several;
* the rendezvous of ``env://``, the default, is that of the MPI, unless another launcher has set RANK;
* ``monitored_barrier`` and ``_set_pg_timeout`` take ringtrain's groups too, and PyTorch's flight recorder takes none;
* ``torch.distributed.Reducer``, which DDP makes, gets a process group of its own, if the model's is ringtrain's; and
  ``_register_builtin_comm_hook``, by which DDP gives it a hook in C++, takes one in Python where only that works.

By ``python -m ringtrain.torch``, for scripts that name another backend, also:

* the names "gloo" and "mpi" mean "ringtrain", wherever PyTorch reads a backend's name, and so does the default of the
  CPU. "nccl" stays NCCL;
* the rendezvous of ``tcp://`` is the MPI's.

By a strategy, also: what DDP makes its reducer with, and FSDP, which is refused (:mod:`ringtrain.torch.strategy_ddp`);
the clipping of gradients and ``GradScaler`` (:mod:`ringtrain.torch.gradients`). By ``--out`` DDP's constructor, to see
forward passes (:mod:`ringtrain.torch.run_log`).
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import parse_qs, urlparse

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers as HANDLERS  # its function refuses a scheme that it has

from ringtrain.launch.python_script import is_plain
from ringtrain.torch.backend import NAME, RingtrainGroup
from ringtrain.torch.buckets import BucketReducer, register_builtin_comm_hook
from ringtrain.torch.mixed import backends_with_ringtrain_last, other_backends
from ringtrain.torch.strategy_ddp import exchange_by
from ringtrain.torch.world import TorchWorld, current, enter

REPLACED = ("gloo", "mpi")
DEVICES = ["cpu", "cuda"]
ENGINE = "RINGTRAIN_ENGINE"  # sends a plain all-reduce too through the engine, to compare it with DDP's own reducer


def install() -> None:
    """Let PyTorch know the backend."""
    dist.Backend.register_backend(NAME, _new_group, extended_api=True, devices=DEVICES)
    c10d.BackendConfig.get_device_backend_map = backends_with_ringtrain_last
    torchs_own = HANDLERS["env"]

    def of_environment(url: str, **named) -> Iterator:
        if "RANK" in os.environ:
            yield from torchs_own(url, **named)
        else:
            yield from _rendezvous(url, **named)

    HANDLERS["env"] = of_environment
    dist.monitored_barrier = c10d.monitored_barrier = _for_all_groups(c10d.monitored_barrier, "monitored_barrier")
    c10d._set_pg_timeout = _for_all_groups(c10d._set_pg_timeout, "set_timeout")
    if hasattr(c10d, "_maybe_attach_flight_recorder"):  # of 2.15 on; it records groups of C++ alone
        c10d._maybe_attach_flight_recorder = partial(_attach_recorder, c10d._maybe_attach_flight_recorder)
    dist.Reducer = BucketReducer
    dist._register_builtin_comm_hook = register_builtin_comm_hook


def _new_group(options, _) -> RingtrainGroup:
    return current().group(options, other_backends(sys._getframe(1)))


def _attach_recorder(torchs_own: Callable, group: dist.ProcessGroup, *more) -> None:
    if not isinstance(group, RingtrainGroup):
        torchs_own(group, *more)


def _for_all_groups(torchs_own: Callable, method: str) -> Callable:
    """Return a function of PyTorch's that knows some groups by their names, as a method of ringtrain's too."""
    takes = inspect.signature(torchs_own)

    def call(*arguments, **named):
        options = takes.bind(*arguments, **named).arguments
        group = options.pop("group", None) or dist.group.WORLD
        if isinstance(group, RingtrainGroup):
            return getattr(group, method)(**options)
        return torchs_own(*arguments, **named)

    return call


def take_over(world: TorchWorld) -> None:
    """Give scripts ringtrain's process groups for those that they name."""
    enter(world)
    if not is_plain(world.config) or ENGINE in os.environ:
        exchange_by(world.config)
    HANDLERS["env"] = HANDLERS["tcp"] = _rendezvous
    read_name = dist.Backend.__new__

    def read(cls, name: str) -> str:
        backend = read_name(cls, name)
        return NAME if backend in REPLACED else backend

    dist.Backend.__new__ = staticmethod(read)
    dist.Backend.default_device_backend_map["cpu"] = NAME


def _rendezvous(url: str, **_) -> Iterator:
    """The MPI's rendezvous. Raises UsageError if the script takes other ranks than the MPI has."""
    rendezvous = current().rendezvous()
    asked = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items()}
    current().check_rank(asked.get("rank"), asked.get("world_size"))
    yield rendezvous
