"""Whether there is a device to use, and if not, why: asked before anything else is, through CuPy.

``cupy`` is the module, passed in.
"""

import os

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.faults import explain

OLDEST = 8, 0  # compute capability: tensor cores of bfloat16, copies past the registers
MAJORS = 12, 13  # versions of CUDA that CuPy is built for
INSTALL = "pip install 'ringtrain[cuda{major}]'"


def import_cupy():
    """Raises: DeviceError where it is not installed, or cannot be imported."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise DeviceError(f"--device cuda: CuPy cannot be imported: {error}") from error
        raise DeviceError(
            f"--device cuda wants CuPy, which is not installed: {INSTALL.format(major=13)} for a driver of CUDA 13, "
            f"{INSTALL.format(major=12)} for an older one (nvidia-smi shows the driver's CUDA version)"
        ) from None
    except ImportError as error:
        raise DeviceError(f"--device cuda: CuPy cannot be imported: {error}") from error
    return cupy


def check_device(cupy, index: int) -> None:
    """Raises: DeviceError unless device ``index`` can be used, for the first reason found."""
    _check_driver(cupy)
    _check_index(_count(cupy), index)
    _check_memory(cupy, index)


def count_visible(cupy) -> int:
    """Raises: DeviceError where the driver does not work. None is no error: who asks knows better what to say."""
    _check_driver(cupy)
    return _counted(cupy)


def version_of(number: int) -> tuple[int, int]:
    """(13, 2) of CUDA's 13020."""
    return number // 1000, number % 1000 // 10


def _check_driver(cupy):
    driver, runtime = (
        version_of(each()) for each in (cupy.cuda.runtime.driverGetVersion, cupy.cuda.runtime.runtimeGetVersion)
    )
    if driver == (0, 0):
        raise DeviceError(
            "--device cuda: no driver of NVIDIA is here (libcuda.so.1 was not found): run where `nvidia-smi` shows a "
            "GPU, in a container with `--gpus all`, or use --device cpu"
        )
    if driver[0] < runtime[0]:
        other = f"pip uninstall cupy-cuda{runtime[0]}x, then {INSTALL.format(major=driver[0])}; or "
        raise DeviceError(
            f"--device cuda: the CuPy that is installed is built for CUDA {runtime[0]}, and the driver runs up to CUDA "
            f"{driver[0]}.{driver[1]}: {other if driver[0] in MAJORS else ''}install a newer driver"
        )


def _counted(cupy):
    try:
        return cupy.cuda.runtime.getDeviceCount()
    except RuntimeError as error:
        if "cudaErrorNoDevice" not in str(error):
            raise DeviceError(f"--device cuda: the driver does not work: {error}") from error
        return 0


def _count(cupy):
    count = _counted(cupy)
    if count == 0:
        raise DeviceError(f"--device cuda: no GPU is visible{_visibility()}; nvidia-smi -L lists those of this machine")
    return count


def _visibility():
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (CUDA_VISIBLE_DEVICES={chosen})"


def _check_index(count, index):
    if not 0 <= index < count:
        seen = "device 0 is" if count == 1 else f"devices 0 to {count - 1} are"
        raise DeviceError(f"device {index} is not visible: {seen}{_visibility()}")


def _check_memory(cupy, index):
    """The first use of the device: its context is made."""
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
            f"device {index}, {properties['name'].decode()}, is of compute capability {capability[0]}.{capability[1]}; "
            f"ringtrain's kernels want {OLDEST[0]}.{OLDEST[1]} (A100, RTX 30) or newer"
        )
