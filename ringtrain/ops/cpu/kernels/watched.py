"""A count of the arrays that kernels allocate while they run, by numba itself.

Numba's runtime counts all that it hands out in the process (its NRT statistics): beside each array that a kernel makes
a handle for each array that it is called with, which holds no elements. So a call has made as many arrays as were
handed out, less its array arguments. How large they were numba does not say.
"""

import sys
from contextlib import contextmanager

import numpy as np
from numba.core.runtime import _nrt_python as runtime  # type: ignore[attr-defined]  # compiled, without a stub

from ringtrain.ops.cpu.kernels import jit


@contextmanager
def watched(note):
    """Inside, ``note(name of a kernel, arrays)`` for each call of one that made any, whichever thread calls it. Kernels
    must have been compiled for what they are called with, and one thread may call them at a time."""
    runtime.memsys_enable_stats()
    held = [(sys.modules[kernel.__module__], kernel.__name__, kernel) for kernel in jit.kernels()]
    for module, name, kernel in held:
        setattr(module, name, _watching(kernel, note))
    try:
        yield
    finally:
        for module, name, kernel in held:
            setattr(module, name, kernel)


def _watching(kernel, note):
    def call(*arguments):
        before = runtime.memsys_get_stats_alloc()
        result = kernel(*arguments)
        handles = sum(isinstance(argument, np.ndarray) for argument in arguments)
        made = runtime.memsys_get_stats_alloc() - before - handles
        if made:
            note(kernel.__name__, made)
        return result

    return call
