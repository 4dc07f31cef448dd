"""Matrix products of cuBLAS, called through ctypes: CuPy's binding refuses a stream that records.

cuBLAS reads memory column by column, so that our matrices are transposed for it: it computes cᵀ = bᵀ · aᵀ. A handle
serves one stream and has workspace of its own, because cuBLAS would otherwise allocate while work is recorded."""

import ctypes
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_size_t, c_void_p

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.faults import no_library

WORKSPACE_BYTES = 32 << 20  # NVIDIA's recommendation for Hopper and Blackwell; older devices want 4 MiB
SONAMES = "libcublas.so.13", "libcublas.so.12"

# Of cublas_api.h and library_types.h.
CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_GEMM_DEFAULT = 0, 1, -1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77
CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14

TYPES = {"float16": CUDA_R_16F, "bfloat16": CUDA_R_16BF, "float32": CUDA_R_32F, "float64": CUDA_R_64F}
MATRIX = c_void_p, c_int, c_int  # address, type, elements from line to line
PARAMETERS = {
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasSetMathMode": (c_void_p, c_int),
    "cublasGemmEx": (c_void_p, *[c_int] * 5, c_void_p, *MATRIX, *MATRIX, c_void_p, *MATRIX, c_int, c_int),
}


class Cublas:
    """cuBLAS on one stream. Made outside of recordings, because it allocates. ``workspace``: a recording keeps it.

    Raises: DeviceError without the library, and for every status of it except success."""

    def __init__(self, runtime, stream: int):
        self._runtime, self._library, self._handle = runtime, load_cublas(), c_void_p()
        self.workspace = runtime.empty((WORKSPACE_BYTES,), np.uint8)
        self._call("cublasCreate_v2", byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, stream)  # before the workspace, which it takes away
        self._call("cublasSetWorkspace_v2", self._handle, runtime.address(self.workspace), WORKSPACE_BYTES)
        # Parts of a long sum are added in float32 too, and not in the type of the result.
        self._call("cublasSetMathMode", self._handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)

    def multiply(self, a, b, c, accumulate, precise):
        """Multiply as :meth:`ringtrain.ops.cuda.cupy_runtime.CupyRuntime.product`."""
        dtype = a.array.dtype
        number = c_double if dtype == np.float64 else c_float
        orders = (CUBLAS_OP_T if each.transposed else CUBLAS_OP_N for each in (b, a))
        left, right, out = (self._operand(each) for each in (b, a, c))
        self._call(
            "cublasGemmEx", self._handle, *orders, c.columns, c.rows, a.columns,
            byref(number(1)), *left, *right, byref(number(accumulate)), *out, _compute(dtype, precise),
            CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    def _operand(self, matrix):
        dtype = matrix.array.dtype
        address = self._runtime.address(matrix.array) + matrix.start * dtype.itemsize
        return address, TYPES[dtype.name], matrix.stride

    def _call(self, name, *arguments):
        status = getattr(self._library, name)(*arguments)
        if status:
            words = self._library.cublasGetStatusString(status).decode()
            raise DeviceError(f"{name} returns {status}: {words}")


def load_cublas():
    """Return the library, its functions declared. Raises: DeviceError if it is not installed."""
    library = _open()
    for name, parameters in PARAMETERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = parameters, c_int
    library.cublasGetStatusString.argtypes, library.cublasGetStatusString.restype = (c_int,), c_char_p
    return library


def _open():
    for path in _paths():
        with suppress(OSError):
            return ctypes.CDLL(path)
    raise DeviceError(no_library("a matrix product of cuBLAS", ", ".join(SONAMES)))


def _paths():
    """Yield where the extras install it, then the names that the loader knows."""
    with suppress(ImportError, RuntimeError):  # no pathfinder, or nothing where it looks
        from cuda.pathfinder import load_nvidia_dynamic_lib

        yield load_nvidia_dynamic_lib("cublas").abs_path
    yield from SONAMES


def check_product(a, b, c) -> None:
    """Raise DeviceError for matrices that cannot be multiplied."""
    if a.columns != b.rows or (a.rows, b.columns) != (c.rows, c.columns) or c.transposed:
        raise DeviceError(f"a product of {_extents(a)} and {_extents(b)} to {_extents(c)}")
    factor, out = a.array.dtype, c.array.dtype
    if factor != b.array.dtype or (out != factor and (factor == np.float64 or out != np.float32)):
        raise DeviceError(f"a product of {factor.name} and {b.array.dtype.name} to {out.name}")


def _extents(matrix) -> str:
    return f"{matrix.rows} × {matrix.columns}"


def _compute(dtype, precise):
    if dtype == np.float64:
        return CUBLAS_COMPUTE_64F
    return CUBLAS_COMPUTE_32F_FAST_TF32 if dtype == np.float32 and not precise else CUBLAS_COMPUTE_32F
