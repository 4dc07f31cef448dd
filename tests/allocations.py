"""Count the arrays that NumPy allocates.

NumPy lets the memory routines of new arrays be replaced (NEP 49). The counting ones here hand on to the C library. They
hold for the calling thread; the data thread's work is therefore done in this thread while it is counted. Not seen:
memory of libraries (the MPI, HDF5), objects of Python that are no arrays, and workspaces of compiled kernels, which say
themselves how large they are.
"""

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass, field

from numpy._core import _multiarray_umath

SET_HANDLER = 304  # PyDataMem_SetHandler's place in NumPy's C API table, which only ever grows
LEAST_BYTES = 64  # smaller ones are numbers in an array's clothes, such as the copy of a scalar

_malloc_t = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_calloc_t = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_realloc_t = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_free_t = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", _malloc_t),
        ("calloc", _calloc_t),
        ("realloc", _realloc_t),
        ("free", _free_t),
    ]


@dataclass(slots=True)
class Count:
    """sizes: bytes of each array that was allocated, of LEAST_BYTES or more."""

    sizes: list[int] = field(default_factory=list)

    def note(self, nbytes: int) -> None:
        if nbytes >= LEAST_BYTES:
            self.sizes.append(nbytes)


def _libc():
    libc = ctypes.CDLL(None)
    for name, result, arguments in (
        ("malloc", ctypes.c_void_p, [ctypes.c_size_t]),
        ("calloc", ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]),
        ("realloc", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
        ("free", None, [ctypes.c_void_p]),
    ):
        function = getattr(libc, name)
        function.restype, function.argtypes = result, arguments
    return libc


def _handler(count: Count) -> _Handler:
    libc = _libc()

    def malloc(_, nbytes):
        count.note(nbytes)
        return libc.malloc(nbytes)

    def calloc(_, number, size):
        count.note(number * size)
        return libc.calloc(number, size)

    def realloc(_, pointer, nbytes):
        count.note(nbytes)
        return libc.realloc(pointer, nbytes)

    return _Handler(
        b"ringtrain_counting",
        1,
        None,
        _malloc_t(malloc),
        _calloc_t(calloc),
        _realloc_t(realloc),
        _free_t(lambda _, pointer, nbytes: libc.free(pointer)),
    )


# An array frees its memory by the handler it was made with, which must therefore outlive it.
_kept: list = []


@contextmanager
def counted():
    """Count the arrays that this thread allocates inside."""
    count = Count()
    handler = _handler(count)
    capsule_new = ctypes.pythonapi.PyCapsule_New
    capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = capsule_new(ctypes.addressof(handler), b"mem_handler", None)
    _kept.append((handler, capsule))
    before = _set_handler()(capsule)
    try:
        yield count
    finally:
        _set_handler()(before)


def _set_handler():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(get(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[SET_HANDLER])
