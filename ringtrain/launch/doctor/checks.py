"""The checks of ``ringtrain doctor``, in the order of their lines."""

from ringtrain.launch.doctor import cores, devices, disk, host, memory, ranks, scheduler

CHECKS = (
    host.python,
    host.mpi,
    host.ranks,
    scheduler.scheduler,
    cores.cores,
    cores.quota,
    cores.threads,
    host.cpu_kernels,
    cores.numa,
    memory.memory,
    memory.locked,
    memory.open_files,
    host.shared_memory,
    ranks.one_sided,
    ranks.faults,
    disk.run_folder,
    host.kernel_cache,
    devices.packages,
    devices.driver,
    devices.mpi_cuda,  # before the next, which opens the device
    devices.device,
)

# These take seconds, and find slow parts rather than missing ones.
MEASURED = (disk.disk, ranks.links)
