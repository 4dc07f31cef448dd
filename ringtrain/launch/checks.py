"""What ``ringtrain doctor`` looks at, in its order."""

from ringtrain.launch import devices, here

CHECKS = (
    here.python,
    here.mpi,
    here.ranks,
    here.local_ranks,
    here.shared_memory,
    here.kernel_caches,
    devices.packages,
    devices.driver,
    devices.mpi_cuda,  # before the next, which opens the device
    devices.device,
)
