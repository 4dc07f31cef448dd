"""Matrix products of cuBLAS, through CuPy.

cuBLAS reads memory column by column, so that our matrices are transposed for it: it computes cᵀ = bᵀ · aᵀ.
"""

import numpy as np

from ringtrain.errors import DeviceError
from ringtrain.ops import texts

NUMBERS = {name: (np.zeros(1, name), np.ones(1, name)) for name in ("float32", "float64")}  # 0 and 1, on the host


def multiply(cupy, a, b, c, accumulate, precise, stream):
    """Multiply as :meth:`ringtrain.ops.cuda.runtime.Runtime.product`."""
    check_product(a, b, c)
    if not (c.rows and c.columns):
        return
    cublas = cupy.cuda.cublas
    if stream.handle is None:
        stream.handle = cublas.create()
    zero, one = (each.ctypes.data for each in NUMBERS["float64" if a.array.dtype == np.float64 else "float32"])
    extents = c.columns, c.rows, a.columns
    left, right, out = (_operand(cupy, each) for each in (b, a, c))
    orders = (cublas.CUBLAS_OP_T if each.transposed else cublas.CUBLAS_OP_N for each in (b, a))
    kind = _compute(cublas, a.array.dtype, precise), cublas.CUBLAS_GEMM_DEFAULT
    with stream.stream:  # CuPy sets cuBLAS to the current stream, overriding any earlier setting
        cublas.gemmEx(
            stream.handle, *orders, *extents, one, *left, *right, one if accumulate else zero, *out, *kind
        )  # fmt: skip


def check_product(a, b, c) -> None:
    """Raise DeviceError for matrices that cannot be multiplied."""
    if a.columns != b.rows or (a.rows, b.columns) != (c.rows, c.columns) or c.transposed:
        raise DeviceError(texts.PRODUCT(a=_extents(a), b=_extents(b), c=_extents(c)))
    given, out = a.array.dtype, c.array.dtype
    if given != b.array.dtype or (out != given and (given == np.float64 or out != np.float32)):
        raise DeviceError(texts.PRODUCT(a=given.name, b=b.array.dtype.name, c=out.name))


def _extents(matrix) -> str:
    return f"{matrix.rows} × {matrix.columns}"


def _operand(cupy, matrix):
    """Return the address, the type and the distance between rows."""
    dtype = matrix.array.dtype
    return matrix.array.data.ptr + matrix.start * dtype.itemsize, _type(cupy.cuda.runtime, dtype), matrix.stride


def _type(runtime, dtype):
    types = {
        "float16": runtime.CUDA_R_16F,
        "bfloat16": runtime.CUDA_R_16BF,
        "float32": runtime.CUDA_R_32F,
        "float64": runtime.CUDA_R_64F,
    }
    return types[dtype.name]


def _compute(cublas, dtype, precise):
    if dtype == np.float64:
        return cublas.CUBLAS_COMPUTE_64F
    quick = dtype == np.float32 and not precise
    return cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if quick else cublas.CUBLAS_COMPUTE_32F
