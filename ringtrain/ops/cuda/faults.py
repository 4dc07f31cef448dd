"""What goes wrong on a device, told to whom it may concern: CuPy's errors as words that say what to do."""

from ringtrain.errors import DeviceError

OUT_OF_MEMORY = "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"
BUSY = "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"
NAMES = "CUDARuntimeError", "CUDADriverError", "CUBLASError"  # of CuPy's classes
GIBIBYTE = 1 << 30


class Unable(DeviceError):
    """A way cannot do this work after all; its message says why."""


def explain(error: Exception, index: int, doing: str) -> str | None:
    """Words for what CuPy raised while ``doing`` something on device ``index``; None for what is no fault of it."""
    kind, text = type(error).__name__, str(error)
    if is_out_of_memory(error):
        return f"device {index} is out of memory: {doing}: {text}"
    if any(name in text for name in BUSY):
        return (
            f"device {index} is in use by another process, and does not take a second one (nvidia-smi -q -d COMPUTE "
            f"shows its mode; nvidia-smi -c DEFAULT lets processes share it): {text}"
        )
    if kind == "CompileException":
        return f"{doing} failed with the words of the compiler:\n{text}"
    if kind in NAMES:
        return f"{doing} failed on device {index}: {text}"
    if isinstance(error, ImportError):
        return (
            f"{doing} wants a library of CUDA that cannot be loaded; pip install 'ringtrain[cuda13]' (or cuda12) "
            f"brings it: {text.splitlines()[0]}"
        )
    return None


def is_out_of_memory(error: Exception) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or any(name in str(error) for name in OUT_OF_MEMORY)


def lacking(nbytes: int, free: int, total: int, index: int) -> str:
    """What to say where an array does not fit."""
    asked, left, whole = (f"{count / GIBIBYTE:.2f} GiB" for count in (nbytes, free, total))
    return (
        f"device {index} is out of memory: {asked} ({nbytes:,} bytes) were asked for, {left} of {whole} are free; use "
        "a smaller batch, or --precision bfloat16"
    )
