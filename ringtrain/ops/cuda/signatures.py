"""The parameters of the kernels of a CUDA source, read from its text, to check launches.

A launch passes bare addresses and bytes; a float for a double, or an int for a long long, would go unnoticed."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringtrain.ops.cuda.boxes import TensorMap

MAP = "TensorMap"  # the C type of a map, passed by value
# C type: NumPy's name of it. Of void any array may be given.
TYPES = {
    "float": "float32",
    "double": "float64",
    "__half": "float16",
    "__nv_bfloat16": "bfloat16",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "void": None,
    MAP: None,
}
C_TYPES = {"float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16"}

KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{', re.DOTALL
)
PARAMETER = re.compile(r"(const\s+)?(?:__grid_constant__\s+)?([\w ]+?)\s*(\*?)\s*(?:__restrict__\s+)?(\w+)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class KernelParameter:
    """A parameter. ``type``: the C type, of an element for an ``array``; an array of ``const`` elements is only
    read."""

    name: str
    type: str
    array: bool
    const: bool

    def __str__(self):
        return f"{'const ' if self.const else ''}{self.type} {'*' if self.array else ''}{self.name}"

    @cached_property
    def dtype(self) -> np.dtype | None:
        name = TYPES[self.type]
        return None if name is None else np.dtype(name)

    @cached_property
    def scalar(self):
        return np.dtype(self.dtype).type

    @cached_property
    def limits(self) -> tuple[int, int] | None:
        """The least and the largest value of a whole number; None for others."""
        if self.dtype is None or self.dtype.kind not in "iu":
            return None
        return int(np.iinfo(self.dtype).min), int(np.iinfo(self.dtype).max)


def parse_signatures(source: str, types: dict[str, str]) -> dict[str, tuple[KernelParameter, ...]]:
    """Return the parameters of each kernel by name. ``types``: the source's own names of types.

    Raises: ValueError for a parameter that is neither a number nor an array of numbers."""
    declarations = KERNEL.findall(COMMENT.sub(" ", source))
    return {name: tuple(_parameters(name, text, types)) for name, text in declarations}


def _parameters(kernel, text, types):
    for each in filter(None, (" ".join(part.split()) for part in text.split(","))):
        match = PARAMETER.fullmatch(each)
        const, kind, star, name = match.groups() if match else ("", "", "", "")
        kind = types.get(kind, kind)
        if kind not in TYPES or (kind == "void" and not star):
            raise ValueError(f"kernel {kernel}: parameter {each!r}; use a pointer or a number of {', '.join(TYPES)}")
        yield KernelParameter(name, kind, bool(star), bool(const))


def convert(kernel: str, parameters: tuple[KernelParameter, ...], arguments) -> list:
    """Return the arguments for a launch: arrays unchanged (None is a null pointer), numbers as NumPy scalars.

    Raises: TypeError for an argument of the wrong kind, OverflowError for an integer that is too large."""
    if len(arguments) != len(parameters):
        wanted = ", ".join(map(str, parameters))
        raise TypeError(f"kernel {kernel} got {len(arguments)} arguments; it takes {len(parameters)}: {wanted}")
    return [_convert(kernel, *pair) for pair in zip(parameters, arguments, strict=True)]


def _convert(kernel, parameter, argument):
    if parameter.array:
        return _array(kernel, parameter, argument)
    if parameter.type == MAP or isinstance(argument, TensorMap):
        return _map(kernel, parameter, argument)
    if not isinstance(argument, int | float | np.number | np.bool_):
        raise TypeError(f"kernel {kernel}: {parameter} got {argument!r}; it takes a number")
    if parameter.limits is not None:
        return _whole(kernel, parameter, argument)
    return parameter.scalar(argument)


def _map(kernel, parameter, argument):
    if parameter.type != MAP or not isinstance(argument, TensorMap):
        kind = "a map" if parameter.type == MAP else "a number"
        raise TypeError(f"kernel {kernel}: {parameter} got {type(argument).__name__}; it takes {kind}")
    return argument


def _array(kernel, parameter, argument):
    if argument is None:
        return None
    dtype = getattr(argument, "dtype", None)
    if dtype is None or isinstance(argument, np.generic | np.ndarray | TensorMap):
        raise TypeError(f"kernel {kernel}: {parameter} got {type(argument).__name__}; it takes an array of the device")
    if parameter.dtype is not None and parameter.dtype != dtype:
        raise TypeError(f"kernel {kernel}: {parameter} got an array of {dtype.name}; it takes {parameter.dtype}")
    return argument


def _whole(kernel, parameter, argument):
    if int(argument) != argument:
        raise TypeError(f"kernel {kernel}: {parameter} got {argument!r}; it takes a whole number")
    least, most = parameter.limits
    if not least <= argument <= most:
        raise OverflowError(f"kernel {kernel}: {parameter} got {argument}, outside of {least}..{most}")
    return parameter.scalar(argument)
