"""MPICH, and MPIs of its binary interface, under other names than ``libmpi.so.12``, which mpi4py's wheel asks for:
Debian's is ``libmpich.so.12``. While mpi4py is loaded, the dynamic linker knows the library by the wanted name.
"""

import ctypes
import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ringtrain.transport.launch_environment import read_launch
from ringtrain.transport.mpi.openmpi import LIBRARY_NAMED, wheel_has

NAMED, OF_MODULE = LIBRARY_NAMED
WANTED, DEBIANS = "libmpi.so.12", "libmpich.so.12"
SEARCHED = ("libmpi.so", WANTED, "libmpi.so.40")  # by mpi4py, in this order


@contextmanager
def as_wanted() -> Iterator[None]:
    """Let mpi4py, while it is loaded, find the MPICH that the user names, or that of the launcher, or Debian's if there
    is no other MPI. Without effect on Open MPI."""
    path, library = _library() if "mpi4py.MPI" not in sys.modules else ("", None)
    if library is None or hasattr(library, "ompi_mpi_comm_self"):
        yield
        return
    # glibc's handle points to the library's link_map (link.h), whose second member is its name.
    name = ctypes.c_void_p.from_address(library._handle + ctypes.sizeof(ctypes.c_void_p))
    wanted, known, unnamed = ctypes.create_string_buffer(WANTED.encode()), name.value, NAMED not in os.environ
    name.value = ctypes.addressof(wanted)
    os.environ.setdefault(NAMED, path)
    try:
        yield
    finally:
        name.value = known
        if unnamed:
            del os.environ[NAMED]


def _library() -> tuple[str, ctypes.CDLL | None]:
    """Return the library to load, after its path. An mpiexec is MPICH's or Intel's, and starts no other MPI."""
    names = (WANTED,) if read_launch(os.environ).by == "mpiexec" else SEARCHED
    folders = (sys.exec_prefix, site.getuserbase(), sys.base_exec_prefix)
    paths = [*(os.path.join(folder, "lib", name) for folder in folders for name in names), *names, DEBIANS]
    paths = os.environ[NAMED].split(os.pathsep) if NAMED in os.environ else paths
    for path in paths if wheel_has("mpich") and OF_MODULE not in os.environ else ():
        with suppress(OSError):
            library = ctypes.CDLL(path, os.RTLD_LAZY | os.RTLD_LOCAL)
            if hasattr(library, "MPI_Get_version"):
                return path, library
    return "", None
