"""Makers of runtimes for the child of a trial, which takes them by name."""

from ringtrain.errors import DeviceError
from tests.fakes.host_cuda import HostRuntime

NOWHERE = 4096  # an address that no process has memory at


class Unreachable(HostRuntime):
    """Memory that this process copies to and from, and whose addresses mean nothing to an MPI: a device's, to an MPI
    that is not aware of it."""

    def address(self, array):
        super().address(array)
        return NOWHERE


def aware(number):
    return HostRuntime()


def unaware(number):
    return Unreachable()


def absent(number):
    raise DeviceError(f"device {number} is not there\nand more that nobody needs")
