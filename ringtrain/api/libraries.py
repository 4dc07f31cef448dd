"""Borrowed arrays: arrays of any library as host memory. None of the libraries is imported here."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ringtrain.errors import UsageError

CPU = 1  # kDLCPU among DLPack's kinds of devices


@dataclass(frozen=True, slots=True)
class BorrowedArray:
    """An array of any library, borrowed as host memory."""

    # the elements, in the array's shape, with any strides: its own memory if the host can reach it, else a copy.
    # bfloat16 has type uint16 there, since NumPy has no such type
    host: np.ndarray
    dtype: str  # name of the elements' type
    # like(host) → a new array of the same library and type, on the same device, that takes over ``host``
    like: Callable[[np.ndarray], Any]
    settle: Callable[[], None] = lambda: None  # copies ``host`` back into the array, if it is a copy


def unreadable(array, error: Exception, advice: str) -> UsageError:
    """Return the error of a library that refuses access to its array's elements."""
    reason = str(error).splitlines()[0]
    return UsageError(f"the elements of {article(array)} cannot be read ({reason}): {advice}")


def article(array) -> str:
    """Return the type of an array with an article: "a torch.Tensor"."""
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def lend_numpy(array: np.ndarray) -> BorrowedArray:
    """Return the memory of an array of NumPy; ml_dtypes' bfloat16 is among its types."""
    dtype = array.dtype
    name = _name(dtype)
    if name == "bfloat16":
        return BorrowedArray(array.view(np.uint16), name, lambda host: host.view(dtype))
    return BorrowedArray(array, name, lambda host: host)


def as_plain(array: np.ndarray) -> np.ndarray:
    """Return the memory of a subclass of NumPy's own: a matrix, a memmap, a recarray. Raises UsageError for one whose
    memory is not all that it means."""
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(
            f"{article(array)} has a mask, which a collective does not see: pass x.filled(…), or x.data for all "
            "elements"
        )
    if type(array).__module__.partition(".")[0] != "numpy":
        raise UsageError(
            f"{article(array)} may mean more than its memory, as a unit: pass np.asarray(x), which is the same memory "
            "without that"
        )
    return array.view(np.ndarray)


@lru_cache(maxsize=256)
def _name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy composes it anew each time, which takes longer than a small message


def lend_scalar(scalar: np.generic) -> BorrowedArray:
    """Return a read-only copy: a scalar has no memory of its own."""
    copy = np.array(scalar)
    copy.flags.writeable = False
    loan = lend_numpy(copy)
    return BorrowedArray(loan.host, loan.dtype, lambda host: loan.like(host)[()])


def torch_memory(tensor) -> np.ndarray:
    """Return the memory of PyTorch's tensor on the CPU. The tensor's own ``numpy()`` ends its resizing; it says why a
    tensor is no plain memory."""
    torch = sys.modules["torch"]  # it has made the tensor
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
        return tensor.numpy()
    dlpack = torch.utils.dlpack
    return dlpack.from_dlpack(dlpack.to_dlpack(tensor)).numpy()


def lend_torch(tensor) -> BorrowedArray:
    """Return the memory of PyTorch's tensor on the CPU; a copy of a device's.

    Raises UsageError for a tensor that autograd watches, and for one that is not plain memory.
    """
    torch = sys.modules["torch"]  # it has made the tensor
    if tensor.requires_grad:
        raise UsageError(
            "the tensor requires grad, and autograd cannot record an all-reduce: pass x.detach(), which is the same "
            "memory, or the gradient x.grad"
        )
    name, device = str(tensor.dtype).removeprefix("torch."), tensor.device
    half = tensor.dtype == torch.bfloat16  # travels as bits: NumPy has no such type
    try:
        seen = tensor if device.type == "cpu" else tensor.to("cpu")
        host = torch_memory(seen.view(torch.int16)).view(np.uint16) if half else torch_memory(seen)
    except (TypeError, RuntimeError, BufferError) as error:
        raise unreadable(tensor, error, "pass a dense tensor of numbers, on the CPU or a GPU") from error

    def like(fresh: np.ndarray):
        tensor = torch.from_numpy(fresh.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(fresh)
        return tensor.to(device)

    def settle() -> None:
        if device.type != "cpu":
            tensor.copy_(seen)

    return BorrowedArray(host, name, like, settle)


def lend_cupy(array) -> BorrowedArray:
    """Return a copy of CuPy's device memory: one copy to the host, and one back."""
    cupy = sys.modules["cupy"]  # it has made the array
    device, host = array.device, array.get()
    loan = lend_numpy(host)

    def upload(fresh):
        with device:
            return cupy.asarray(fresh)

    def settle() -> None:
        with device:
            array[...] = cupy.asarray(host)  # unlike set(), for any strides

    return BorrowedArray(loan.host, loan.dtype, lambda fresh: upload(loan.like(fresh)), settle)


def lend_jax(array) -> BorrowedArray:
    """Return the memory of JAX's array on the CPU, read-only; a copy of a device's. A result is a new array.

    Raises UsageError inside a transformed function.
    """
    jax = sys.modules["jax"]  # it has made the array
    try:
        seen = np.asarray(array)
    except (TypeError, RuntimeError) as error:
        raise unreadable(
            array,
            error,
            "inside jit, grad or vmap an array has no elements yet: call outside, or through jax.pure_callback",
        ) from error
    loan = lend_numpy(seen)
    sharding = array.sharding
    return BorrowedArray(loan.host, loan.dtype, lambda host: jax.device_put(loan.like(host), sharding))


def lend_dlpack(array) -> BorrowedArray:
    """Return the host memory of an array of any other library that speaks DLPack. Results are NumPy's.

    Raises UsageError if it lies on a device, or cannot be read.
    Source: the Python specification of DLPack, data-apis.org/array-api.
    """
    kind, index = array.__dlpack_device__()
    if kind != CPU:
        raise UsageError(
            f"{article(array)} lies on device {int(kind)}:{index} (DLPack's numbers), and only arrays of PyTorch, "
            "CuPy and JAX can be copied to the host from there: copy it to the host first"
        )
    try:
        host = np.from_dlpack(array)
    except (TypeError, RuntimeError, BufferError) as error:
        raise unreadable(array, error, "pass a NumPy array of it") from error
    return BorrowedArray(host, host.dtype.name, lambda fresh: fresh)


BY_LIBRARY = {"torch": lend_torch, "cupy": lend_cupy, "jax": lend_jax, "jaxlib": lend_jax}


def lend(array) -> BorrowedArray:
    """Return the array as host memory. Raises UsageError for objects that are no arrays."""
    if type(array) is np.ndarray:
        return lend_numpy(array)
    if isinstance(array, np.ndarray):
        return lend_numpy(as_plain(array))
    if isinstance(array, np.generic):
        return lend_scalar(array)
    for kind in type(array).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in BY_LIBRARY:
            return BY_LIBRARY[library](array)
        if "__dlpack__" in vars(kind):
            return lend_dlpack(array)
    raise UsageError(
        f"{article(array)} is not an array: pass one of NumPy, PyTorch, JAX or CuPy, or any that has __dlpack__; a "
        "number as np.float64(x)"
    )
