"""Facts about the loaded MPI: its file, its launcher, its CUDA support, and the UCX below it."""

import ctypes
import re
import shutil
import sys
from pathlib import Path

from mpi4py import MPI

from ringtrain.transport.cuda_aware.decision import NO, UNKNOWN, YES, Evidence

MAPS = Path("/proc/self/maps")
LIBMPI = r"/libmpi(ch|_\w+)?\.so"  # libmpi.so.40, libmpich.so.12, libmpi_abi.so.0, libmpi_cray.so.12
LIBUCP = r"/libucp(-\w+)?\.so"
GPU_SUPPORT_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h


def loaded(pattern: str, maps: str | None = None) -> Path | None:
    """Return the first library of this process whose path matches. ``maps``: in place of the system's list."""
    lines = (MAPS.read_text() if maps is None and MAPS.exists() else maps or "").splitlines()
    return next((Path(line.split(maxsplit=5)[5]) for line in lines if re.search(pattern, line)), None)


def query() -> Evidence:
    """Return the evidence of ``MPIX_Query_cuda_support``."""
    path = loaded(LIBMPI)
    if path is None:
        return Evidence("query", UNKNOWN, "no MPI library file was found among the loaded libraries")
    # mpi4py loads it for itself alone: by its path it is found again.
    library = ctypes.CDLL(str(path))
    for name, ask in (("MPIX_Query_cuda_support", _ask), ("MPIX_GPU_query_support", _ask_kind)):
        function = getattr(library, name, None)
        if function is not None:
            built = ask(function)
            return Evidence("query", YES if built else NO, f"{name} says {YES if built else NO}")
    return Evidence("query", UNKNOWN, f"{path.name} has no MPIX_Query_cuda_support")


def _ask(function) -> bool:
    function.restype, function.argtypes = ctypes.c_int, []
    return bool(function())


def _ask_kind(function) -> bool:
    supported = ctypes.c_int(0)
    function.restype, function.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
    return function(GPU_SUPPORT_CUDA, ctypes.byref(supported)) == 0 and bool(supported.value)


def ucx() -> Evidence:
    return ucx_evidence(loaded(LIBUCP))


def ucx_evidence(path: Path | None) -> Evidence:
    """Return the evidence of UCX. ``path``: the loaded UCX, whose modules lie in a folder beside it."""
    if path is None:
        return Evidence("ucx", NO, "no UCX is loaded")
    if any(path.parent.glob("ucx/libuct_cuda*.so*")):
        return Evidence("ucx", YES, f"{path} has a module for CUDA")
    return Evidence("ucx", NO, f"{path} has no module for CUDA")


def mpi_evidence() -> list[Evidence]:
    """Return the evidence that this process can collect without touching a device."""
    return [query(), ucx()]


def launcher() -> Path | None:
    """Return the mpirun of the loaded library: in its own tree, beside this Python, or on the path."""
    library = loaded(LIBMPI)
    folders = [parent / "bin" for parent in library.parents[:3]] if library else []
    for folder in [*folders, Path(sys.executable).parent]:
        for name in ("mpirun", "mpiexec"):
            if (folder / name).is_file():
                return folder / name
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    return Path(path) if path else None


def vendor() -> str:
    """Return "Open MPI" or "MPICH"."""
    return MPI.get_vendor()[0]
