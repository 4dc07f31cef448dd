"""A process group with other backends for other devices: of "cpu:gloo,cuda:nccl" ringtrain takes the CPU's tensors.

PyTorch makes the backends of a group one after the other, and ends with one that is a whole group in Python, as
ringtrain's is. So ringtrain's comes last, and takes in the group with the others.
"""

from collections.abc import Callable
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BackendConfig

from ringtrain.errors import UsageError
from ringtrain.torch.backend import NAME, RingtrainGroup
from ringtrain.torch.call_order import CallOrder

_in_order_of_the_name = BackendConfig.get_device_backend_map


def backends_with_ringtrain_last(config: BackendConfig) -> dict[str, str]:
    """Return the backends of a group by device, in the order in which PyTorch makes them."""
    return dict(sorted(_in_order_of_the_name(config).items(), key=lambda item: item[1] == NAME))


def other_backends(maker: FrameType) -> dist.ProcessGroup | None:
    """Return the group of a new group's other backends; None without any. Raises UsageError if it cannot be found.

    maker: the call of PyTorch's that makes the new group
    """
    config, others = maker.f_locals.get("backend_config"), maker.f_locals.get("pg")
    if config is None or {*_in_order_of_the_name(config).values()} == {NAME}:
        return None
    if type(others) is not dist.ProcessGroup:
        raise UsageError(
            f"the group of {config} cannot be made with torch {torch.__version__}: make one group for the CPU's "
            "tensors and another one for the other devices'"
        )
    return others


class MixedGroup(RingtrainGroup):
    """``others``: the group that takes what is on their devices."""

    def __init__(self, order: CallOrder, options, others: dist.ProcessGroup, reproducible: bool = False):
        super().__init__(order, options, reproducible)
        self.others = others
        if others.bound_device_id is not None:
            self.bound_device_id = others.bound_device_id

    @property
    def _device_types(self) -> list[torch.device]:
        return [*super()._device_types, *self.others._device_types]

    def _get_backend(self, device: torch.device):
        return self if self.is_own(device) else self.others._get_backend(device)

    def is_own(self, device: torch.device | None) -> bool:
        return device is None or torch.device(device.type) not in self.others._device_types

    def setGroupName(self, name: str) -> None:
        super().setGroupName(name)
        self.others._set_group_name(name)

    def setGroupDesc(self, description: str) -> None:
        super().setGroupDesc(description)
        self.others._set_group_desc(description)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self.others.set_timeout(timeout)

    def shutdown(self) -> None:
        self.others.shutdown()
        super().shutdown()


def _by_device(name: str) -> Callable:
    """Return a method for what both kinds of groups can do; without a device it is of this one."""
    method_of_cpu = getattr(RingtrainGroup, name)

    def method(self: MixedGroup, *arguments, **named):
        if self.is_own(_device([*arguments, *named.values()])):
            return method_of_cpu(self, *arguments, **named)
        return getattr(self.others, name)(*arguments, **named)

    return method


def _device(argument) -> torch.device | None:
    """Return the device of the first tensor in lists of lists, or of options that name one."""
    if isinstance(argument, torch.device):
        return argument
    if isinstance(argument, (list, tuple)):
        return next((device for each in argument if (device := _device(each)) is not None), None)
    return getattr(argument, "device", None)


for _name in sorted({*vars(RingtrainGroup)} & {*dir(dist.ProcessGroup)} - {*vars(MixedGroup)}):
    if callable(getattr(RingtrainGroup, _name)) and not _name.startswith("__"):
        setattr(MixedGroup, _name, _by_device(_name))
