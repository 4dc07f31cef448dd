"""Matrix products by OpenBLAS, called by address through ctypes: no array is made, ``beta`` can accumulate."""

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ringtrain.errors import ConfigError
from ringtrain.ops import texts

ROW_MAJOR = 101
PLAIN, TRANSPOSED = 111, 112
MOST_THREADS, THREADS_A_CORE = 64, 4
THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class Blas:
    """The products of one floating-point type. Addresses are integers, leading dimensions count elements."""

    def __init__(self, dtype):
        self._library = _load()
        self._scalar, symbol = {
            4: (ctypes.c_float, "scipy_cblas_sgemm"),
            8: (ctypes.c_double, "scipy_cblas_dgemm"),
        }[dtype.itemsize]
        self._gemm = getattr(self._library, symbol)
        self._gemm.restype = None
        self._gemm.argtypes = _gemm_types(self._scalar)

    def gemm(self, m, n, k, a, lda, a_order, b, ldb, b_order, c, ldc, beta):
        """c[m, n] = a[m, k] · b[k, n] + beta · c, row-major; an order is PLAIN or TRANSPOSED."""
        self._gemm(ROW_MAJOR, a_order, b_order, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc)

    def threads(self, count: int) -> None:
        """Let products use ``count`` threads, in the whole process. Raises ConfigError for more than can be used."""
        most = max(MOST_THREADS, THREADS_A_CORE * (os.cpu_count() or 1))
        if count > most:
            limits = {"most": most, "per_core": THREADS_A_CORE, "least": MOST_THREADS}
            raise ConfigError(texts.THREADS(count=count, **limits))
        self._library.scipy_openblas_set_num_threads(count)

    def describe(self) -> str:
        """Return the version, the core of the kernels, and threads."""
        found = _about(self._library)
        return f"{found.numerics}, {found.threads} thread{'s' * (found.threads != 1)}"

    def numerics(self) -> str:
        return _about(self._library).numerics


class About(NamedTuple):
    """The loaded library.

    version: "OpenBLAS 0.3.30"
    core:    the core of the kernels
    threads: threads of a product
    """

    version: str
    core: str
    threads: int

    @property
    def numerics(self) -> str:
        """The facts that decide the order of a product's sums."""
        return f"{self.version} ({self.core})"


def loaded_library() -> About:
    """Return the loaded library; loads it if necessary."""
    return _about(_load())


def _about(library) -> About:
    config, core = library.scipy_openblas_get_config, library.scipy_openblas_get_corename
    config.restype = core.restype = ctypes.c_char_p
    version = " ".join(config().decode().split()[:2])
    return About(version, core().decode(), library.scipy_openblas_get_num_threads())


def _gemm_types(scalar):
    size, address = ctypes.c_int, ctypes.c_void_p
    return [size] * 6 + [scalar, address, size, address, size, scalar, address, size]


def _load():
    with _one_thread():
        import scipy_openblas32

        return ctypes.CDLL(str(Path(scipy_openblas32.get_lib_dir()) / "libscipy_openblas.so"))


@contextmanager
def _one_thread():
    """Load the library with one thread, unless the user chose a number. By default OpenBLAS starts a thread a core at
    its load, which would cost each of many ranks on a node.
    """
    if any(name in os.environ for name in THREAD_SETTINGS):
        yield
        return
    os.environ[THREAD_SETTINGS[0]] = "1"
    try:
        yield
    finally:
        del os.environ[THREAD_SETTINGS[0]]
