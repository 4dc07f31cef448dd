"""Count the arrays that NumPy allocates.

NumPy lets the memory routines of new arrays be replaced (NEP 49). The counting ones here hand on to the C library. They
hold for the calling thread; the data thread's work is therefore done in this thread while it is counted. Not seen:
memory of libraries (the MPI, HDF5), objects of Python that are no arrays, and workspaces of compiled kernels, which say
themselves how large they are.
"""

import ctypes
from contextlib import contextmanager

from numpy._core import _multiarray_umath

SET_HANDLER = 304  # PyDataMem_SetHandler's place in NumPy's C API table, which only ever grows
LEAST_BYTES = 64  # smaller ones are numbers in an array's clothes, such as the copy of a scalar

POINTER, SIZE, LIBC = ctypes.c_void_p, ctypes.c_size_t, ctypes.CDLL(None)
_malloc_t, _calloc_t, _realloc_t, _free_t = (
    ctypes.CFUNCTYPE(*types)
    for types in (
        (POINTER, POINTER, SIZE), (POINTER, POINTER, SIZE, SIZE), (POINTER, POINTER, POINTER, SIZE),
        (None, POINTER, POINTER, SIZE),
    )
)  # fmt: skip


class _Handler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("ctx", POINTER), ("malloc", _malloc_t),
        ("calloc", _calloc_t), ("realloc", _realloc_t), ("free", _free_t),
    ]  # fmt: skip


def _handler(sizes: list[int]) -> _Handler:
    libc_malloc = ctypes.CFUNCTYPE(POINTER, SIZE)(("malloc", LIBC))
    libc_calloc = ctypes.CFUNCTYPE(POINTER, SIZE, SIZE)(("calloc", LIBC))
    libc_realloc = ctypes.CFUNCTYPE(POINTER, POINTER, SIZE)(("realloc", LIBC))
    libc_free = ctypes.CFUNCTYPE(None, POINTER)(("free", LIBC))

    def counting(nbytes, allocate, *arguments):
        if nbytes >= LEAST_BYTES:
            sizes.append(nbytes)
        return allocate(*arguments)

    return _Handler(
        b"ringtrain_counting",
        1,
        None,
        _malloc_t(lambda _, nbytes: counting(nbytes, libc_malloc, nbytes)),
        _calloc_t(lambda _, number, size: counting(number * size, libc_calloc, number, size)),
        _realloc_t(lambda _, pointer, nbytes: counting(nbytes, libc_realloc, pointer, nbytes)),
        _free_t(lambda _, pointer, nbytes: libc_free(pointer)),
    )


# An array frees its memory by the handler it was made with, which must therefore outlive it.
_kept: list = []


@contextmanager
def counted():
    """The bytes of each array of LEAST_BYTES or more that this thread allocates inside."""
    sizes: list[int] = []
    handler = _handler(sizes)
    capsule_new = ctypes.pythonapi.PyCapsule_New
    capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = capsule_new(ctypes.addressof(handler), b"mem_handler", None)
    _kept.append((handler, capsule))
    before = _set_handler()(capsule)
    try:
        yield sizes
    finally:
        _set_handler()(before)


def _set_handler():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(get(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
