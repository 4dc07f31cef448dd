"""The implementations by name, each imported at its first use."""

from ringtrain.errors import ConfigError, nearest
from ringtrain.ops import texts


def _cpu(dtype):
    from ringtrain.ops.cpu import CpuOps

    return CpuOps(dtype)


def _reference(dtype):
    from ringtrain.ops.reference import ReferenceOps

    return ReferenceOps(dtype)


OPS = {"cpu": _cpu, "reference": _reference}


def make_ops(name: str, dtype="float32"):
    """Return the operations of a host with this name, in float32 or float64.

    Raises: ConfigError for an unknown name or another type.
    """
    if name not in OPS:
        raise ConfigError(texts.UNKNOWN_OPS(name=name, hint=nearest(name, OPS)))
    if str(dtype) not in ("float32", "float64"):
        raise ConfigError(texts.UNKNOWN_DTYPE(name=name, dtype=str(dtype)))
    return OPS[name](dtype)
