"""The checks of ``ringtrain doctor``, in the order of their lines."""

from ringtrain.launch.doctor import cores, devices, disk, host

CHECKS = (
    host.python,
    host.mpi,
    host.ranks,
    cores.cores,
    cores.threads,
    host.cpu_kernels,
    host.shared_memory,
    disk.run_folder,
    devices.packages,
    devices.driver,
    devices.mpi_cuda,  # before the next, which opens the device
    devices.device,
)

# These take seconds, and find slow parts rather than missing ones.
MEASURED = (disk.disk, host.links)
