"""The implementations by name, each imported at its first use."""

from importlib import import_module

from ringtrain.errors import ConfigError, nearest

OPS = {"cpu": "CpuOps", "reference": "ReferenceOps"}  # class, of the part of this name


def make_ops(name: str, dtype="float32"):
    """Return the operations of a host with this name, in float32 or float64.

    Raises: ConfigError for an unknown name or another type."""
    if name not in OPS:
        raise ConfigError(f"unknown operations {name!r}; {nearest(name, OPS)}")
    if str(dtype) not in ("float32", "float64"):
        raise ConfigError(f"operations {name!r} got dtype {str(dtype)!r}; use float32 or float64")
    return getattr(import_module(f"ringtrain.ops.{name}"), OPS[name])(dtype)
