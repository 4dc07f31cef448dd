"""A cuBLAS on the host, behind C functions of the types in its header: it multiplies what lies at the addresses given.

It reads memory column by column, and forgets its workspace when it gets a stream, as cuBLAS does; what that refuses,
this refuses.
"""

import ctypes
from ctypes import CFUNCTYPE, c_double, c_float, c_int, c_void_p

import ml_dtypes
import numpy as np

from ringtrain.ops.cuda.cublas import PARAMETERS
from tests.fakes.host_cuda import multiply

HANDLE = 77
SUCCESS, INVALID_VALUE, EXECUTION_FAILED, INTERNAL_ERROR, NOT_SUPPORTED = 0, 7, 13, 14, 15
WORDS = b"it is only a fake"
TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}  # of cudaDataType
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
# Types of the factors and of the result.
PAIRS = {
    COMPUTE_32F: [(0, 0), (2, 2), (2, 0), (14, 14), (14, 0)],
    COMPUTE_64F: [(1, 1)],
    COMPUTE_32F_FAST_TF32: [(0, 0)],
}


class FakeCublas:
    """The library. ``failing``: the status that functions return, by name."""

    def __init__(self):
        self.failing, self.workspace = {}, None
        self._words = ctypes.create_string_buffer(WORDS)
        self.cublasGetStatusString = CFUNCTYPE(c_void_p, c_int)(lambda status: ctypes.addressof(self._words))
        for name, types in PARAMETERS.items():
            setattr(self, name, CFUNCTYPE(c_int, *types)(self._guarded(name)))

    def _guarded(self, name):
        def call(*arguments):
            try:
                return self.failing.get(name) or getattr(self, f"_{name}")(*arguments)
            except Exception:  # must not leave a callback
                return INTERNAL_ERROR

        return call

    def _cublasCreate_v2(self, handle):
        handle[0] = HANDLE
        return SUCCESS

    def _cublasSetStream_v2(self, handle, stream):
        self.workspace = None
        return SUCCESS

    def _cublasSetWorkspace_v2(self, handle, address, nbytes):
        self.workspace = address, nbytes
        return SUCCESS if address % 256 == 0 else INVALID_VALUE

    def _cublasSetMathMode(self, handle, mode):
        return SUCCESS

    def _cublasGemmEx(
        self, handle, transa, transb, m, n, k,
        alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algo,
    ):  # fmt: skip
        if self.workspace is None or handle != HANDLE or algo != -1:
            return EXECUTION_FAILED
        if lda < max(1, k if transa else m) or ldb < max(1, n if transb else k) or ldc < max(1, m):
            return INVALID_VALUE
        number = c_double if compute == COMPUTE_64F else c_float
        factor, kept = (number.from_address(each).value for each in (alpha, beta))
        if a_type != b_type or (a_type, c_type) not in PAIRS.get(compute, ()) or factor != 1 or kept not in (0, 1):
            return NOT_SUPPORTED
        left = _columns(a, a_type, *((k, m) if transa else (m, k)), lda)
        right = _columns(b, b_type, *((n, k) if transb else (k, n)), ldb)
        out = _columns(c, c_type, m, n, ldc)
        left, right = left.T if transa else left, right.T if transb else right
        multiply(left, right, out, kept, compute != COMPUTE_32F_FAST_TF32)
        return SUCCESS


def _columns(address, kind, rows, columns, stride):
    """The matrix whose columns lie ``stride`` elements apart."""
    dtype = np.dtype(TYPES[kind])
    nbytes = ((columns - 1) * stride + rows) * dtype.itemsize
    flat = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, stride * dtype.itemsize))
