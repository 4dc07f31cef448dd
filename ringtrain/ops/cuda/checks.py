"""Checks for a usable device, with the reason if there is none: made first, through CuPy.

``cupy`` is the module, passed in."""

import os

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.faults import explain

OLDEST = 8, 0  # compute capability: tensor cores of bfloat16, copies past the registers
MAJORS = 12, 13  # versions of CUDA that CuPy is built for


def import_cupy():
    """Return CuPy. Raises: DeviceError if it is not installed, or cannot be imported."""
    try:
        import cupy
    except ImportError as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == "cupy"):
            raise DeviceError(f"--device cuda: CuPy cannot be imported: {error}") from error
        raise DeviceError(
            "--device cuda wants CuPy, which is not installed: pip install 'ringtrain[cuda13]' for a driver of CUDA "
            "13, pip install 'ringtrain[cuda12]' for an older one (nvidia-smi shows the driver's CUDA version)"
        ) from None
    return cupy


def check_visible(cupy, index: int) -> None:
    """Check that there is a device ``index``, without its first use. Raises: DeviceError"""
    count, chosen = count_visible(cupy), os.environ.get("CUDA_VISIBLE_DEVICES")
    setting = "" if chosen is None else f" (CUDA_VISIBLE_DEVICES={chosen})"
    if count == 0:
        raise DeviceError(f"--device cuda: no GPU is visible{setting}; nvidia-smi -L lists the GPUs of this machine")
    if not 0 <= index < count:
        seen = "device 0 is" if count == 1 else f"devices 0 to {count - 1} are"
        raise DeviceError(f"device {index} is not visible: {seen}{setting}")


def count_visible(cupy) -> int:
    """Return the number of devices, also 0. Raises: DeviceError if the driver does not work."""
    _check_driver(cupy)
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        if "cudaErrorNoDevice" not in str(error):
            raise DeviceError(f"--device cuda: the driver does not work: {error}") from error
        return 0


def version_of(number: int) -> tuple[int, int]:
    """Return (13, 2) for CUDA's 13020."""
    return number // 1000, number % 1000 // 10


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _check_driver(cupy):
    driver, runtime = (
        version_of(each()) for each in (cupy.cuda.runtime.driverGetVersion, cupy.cuda.runtime.runtimeGetVersion)
    )
    if driver == (0, 0):
        raise DeviceError(
            "--device cuda: no NVIDIA driver was found (there is no libcuda.so.1): run where `nvidia-smi` shows a "
            "GPU, give a container `--gpus all`, or use --device cpu"
        )
    if driver[0] < runtime[0]:
        older = f"pip uninstall cupy-cuda{runtime[0]}x, then pip install 'ringtrain[cuda{driver[0]}]'; or "
        what_to_do = (older if driver[0] in MAJORS else "") + "install a newer driver"
        raise DeviceError(
            f"--device cuda: the installed CuPy is built for CUDA {runtime[0]}, but the driver runs up to CUDA "
            f"{_dotted(driver)}: {what_to_do}"
        )


def check_usable(cupy, index: int) -> None:
    """Check device ``index``, by its first use, which creates its context. Raises: DeviceError for the first reason
    that it cannot be used."""
    check_visible(cupy, index)
    try:
        cupy.cuda.runtime.setDevice(index)
        cupy.cuda.runtime.memGetInfo()
        properties = cupy.cuda.runtime.getDeviceProperties(index)
    except RuntimeError as error:
        words = explain(error, index, "the first use")
        raise DeviceError(words or f"device {index} cannot be used: {error}") from error
    capability = properties["major"], properties["minor"]
    if capability < OLDEST:
        raise DeviceError(
            f"device {index}, {properties['name'].decode()}, has compute capability {_dotted(capability)}; ringtrain's "
            f"kernels want {_dotted(OLDEST)} (A100, RTX 30) or newer"
        )
