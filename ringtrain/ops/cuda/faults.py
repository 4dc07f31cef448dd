"""Errors of a device: CuPy's errors as texts with a remedy."""

from ringtrain.errors import DeviceError
from ringtrain.template import LINES, Lines, escaped

OUT_OF_MEMORY = "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"
BUSY = "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"
NAMES = "CUDARuntimeError", "CUDADriverError"  # of CuPy's classes
GIBIBYTE = 1 << 30


class Unable(DeviceError):
    """A variant cannot do this work; the message is the reason."""


def explain(error: Exception, index: int, doing: str) -> str | None:
    """Return the text for CuPy's error while ``doing`` something on device ``index``; None for an error of another
    kind."""
    kind, text = type(error).__name__, str(error)
    if is_out_of_memory(error):
        return f"device {index} is out of memory: {doing}: {text}"
    if any(name in text for name in BUSY):
        return (
            f"device {index} is in use by another process and accepts no second one (nvidia-smi -q -d COMPUTE shows "
            f"its mode; nvidia-smi -c DEFAULT lets processes share it): {text}"
        )
    if kind == "CompileException":
        return Lines(f"{doing} failed; the compiler says:\n{escaped(text, LINES)}")
    if kind in NAMES:
        return f"{doing} failed on device {index}: {text}"
    if isinstance(error, ImportError):
        return no_library(doing, text.splitlines()[0])
    return None


def no_library(doing: str, error: str) -> str:
    """Return the text for a library that is not installed."""
    return (
        f"{doing} wants a CUDA library that cannot be loaded; pip install 'ringtrain[cuda13]' (or cuda12) installs it: "
        f"{error}"
    )


def is_out_of_memory(error: Exception) -> bool:
    """Whether CuPy's error means a full memory."""
    return type(error).__name__ == "OutOfMemoryError" or any(name in str(error) for name in OUT_OF_MEMORY)


def lacking(nbytes: int, free: int, total: int, index: int) -> str:
    """Return the text for an array that does not fit."""
    asked, left, whole = (f"{count / GIBIBYTE:.2f} GiB" for count in (nbytes, free, total))
    return (
        f"device {index} is out of memory: an array wants {asked} ({nbytes:,} bytes), {left} of {whole} are free; use "
        "a smaller batch, or --precision bfloat16"
    )
