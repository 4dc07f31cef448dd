"""The implementations by name, each imported when it is first asked for."""

from ringtrain.errors import ConfigError, nearest


def _cpu(dtype):
    from ringtrain.ops.cpu import CpuOps

    return CpuOps(dtype)


def _reference(dtype):
    from ringtrain.ops.reference import ReferenceOps

    return ReferenceOps(dtype)


def _cuda(dtype, precision, index):
    from ringtrain.ops.cuda import CudaOps
    from ringtrain.ops.cuda.cupy_runtime import make_runtime

    return CudaOps(make_runtime(index), dtype, precision)


HOSTS = {"cpu": _cpu, "reference": _reference}
DEVICES = {"cuda": _cuda}
OPS = HOSTS | DEVICES


def make_ops(name: str, dtype="float32", precision="float32", index=0):
    """The operations called ``name``, in float32 or float64. ``precision``, of
    :data:`ringtrain.ops.precision.PRECISIONS`, and ``index``, of the devices that are visible, are for a device.

    Raises: ConfigError for an unknown name, another type, or a precision that is not there; DeviceError where there is
    no such device, or not one that can be used.
    """
    if name not in OPS:
        raise ConfigError(f"operations {name!r} are not known; {nearest(name, OPS)}")
    if str(dtype) not in ("float32", "float64"):
        raise ConfigError(f"operations {name!r} got dtype {str(dtype)!r}; use float32 or float64")
    if name in DEVICES:
        return DEVICES[name](dtype, precision, index)
    if precision != "float32":
        raise ConfigError(
            f"operations {name!r} got precision {precision!r}; they have float32 alone, --device cuda more"
        )
    return HOSTS[name](dtype)
