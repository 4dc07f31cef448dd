"""Errors of a device: CuPy's errors as texts with a remedy."""

from ringtrain.errors import DeviceError
from ringtrain.ops import texts

OUT_OF_MEMORY = "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"
BUSY = "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"
NAMES = "CUDARuntimeError", "CUDADriverError"  # of CuPy's classes
GIBIBYTE = 1 << 30


class Unable(DeviceError):
    """A way cannot do this work; the message is the reason."""


def explain(error: Exception, index: int, doing: str) -> str | None:
    """Return the text for CuPy's error while ``doing`` something on device ``index``; None for an error of another
    kind.
    """
    kind, text = type(error).__name__, str(error)
    if is_out_of_memory(error):
        return texts.OUT_OF_MEMORY(index=index, doing=doing, error=text)
    if any(name in text for name in BUSY):
        return texts.BUSY(index=index, error=text)
    if kind == "CompileException":
        return texts.NOT_COMPILED(doing=doing, error=text)
    if kind in NAMES:
        return texts.FAILED(doing=doing, index=index, error=text)
    if isinstance(error, ImportError):
        return texts.NO_LIBRARY(doing=doing, error=text.splitlines()[0])
    return None


def is_out_of_memory(error: Exception) -> bool:
    """Whether CuPy's error means a full memory."""
    return type(error).__name__ == "OutOfMemoryError" or any(name in str(error) for name in OUT_OF_MEMORY)


def lacking(nbytes: int, free: int, total: int, index: int) -> str:
    """Return the text for an array that does not fit."""
    asked, left, whole = (f"{count / GIBIBYTE:.2f} GiB" for count in (nbytes, free, total))
    return texts.ARRAY_TOO_LARGE(index=index, asked=asked, nbytes=nbytes, left=left, whole=whole)
