"""What ``ringtrain doctor`` looks at, in its order."""

from ringtrain.launch import scheduler
from ringtrain.launch.doctor import cores, devices, disk, links, memory, places
from ringtrain.launch.doctor import host as here
from ringtrain.launch.doctor import ranks as between

CHECKS = (
    here.python,
    here.mpi,
    here.ranks,
    here.local_ranks,
    scheduler.scheduler,
    cores.cores,
    cores.quota,
    cores.blas,
    places.memory_nodes,
    places.network,
    memory.room,
    memory.locked,
    memory.open_files,
    here.shared_memory,
    between.single_copy,
    between.one_sided,
    between.faults,
    between.clocks,
    disk.run_folder,
    here.kernel_caches,
    devices.packages,
    devices.driver,
    devices.mpi_cuda,  # before the next, which opens the device
    devices.device,
)

# What takes a while, and finds what is slow rather than what is missing.
MEASURED = (disk.disk, links.links)
