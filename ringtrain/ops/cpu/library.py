"""The compiled kernels of this CPU, called through ctypes. Their sources say which arguments each has."""

import ctypes
import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringtrain.errors import ConfigError
from ringtrain.ops.base import ACTIVATIONS
from ringtrain.ops.cpu.compile import LIBRARIES, NEEDS, SOURCES, cpu_families, file_name, sources_digest

FAMILY_SETTING = "RINGTRAIN_CPU_FAMILY"
FUSED = ("x86-64-v4", "x86-64-v3", "aarch64")  # families with fused multiply-adds: they give the same bits
THREADS_SETTING, MOST_THREADS = "OMP_NUM_THREADS", 64  # as in sources/threads.hpp

STEPS = ("test", "wait", "rest")  # calls of an all-reduce
C_NAMES = {"float32": "float", "float64": "double"}
NUMBERS = {"Int": ctypes.c_int64, "bool": ctypes.c_bool, "double": ctypes.c_double, "uint64_t": ctypes.c_uint64}
ELEMENTS = {
    "double": "float64",
    "float": "float32",
    "int32_t": "int32",
    "Int": "int64",
    "uint8_t": "uint8",
    "uint16_t": "uint16",
    "uint32_t": "uint32",
    "uint64_t": "uint64",
}
AT = ctypes.c_char * 0  # the place of a buffer
KERNEL = re.compile(r"^KERNEL\((\w+)\)\(([^)]*)\)", re.MULTILINE)
PARAMETER = re.compile(r"(const )?(\w+)(\*| )\s*(\w+)$")


class ArrayParameter:
    """An array of one type, whose elements lie one after another; None is a null pointer. ``read``: only read."""

    def __init__(self, dtype: str, read: bool = False):
        self.dtype, self.read = np.dtype(dtype), read

    def from_param(self, x: np.ndarray | None):
        if x is None:
            return None
        if not isinstance(x, np.ndarray) or x.dtype != self.dtype or not x.flags.c_contiguous:
            raise TypeError(f"wanted an array of {self.dtype} without gaps, got {x.dtype} with strides {x.strides}")
        try:
            return AT.from_buffer(x)  # type: ignore[arg-type]  # a fifth of the time of x.ctypes
        except TypeError:  # it is read-only
            if not self.read:
                raise TypeError(f"wanted an array of {self.dtype} to write into, got one that is read-only") from None
            return ctypes.c_void_p(x.ctypes.data)  # x.ctypes itself would leave cycles for the garbage collector


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel. ``type``: in C, of an element if it is an array; ``const``: elements are only read."""

    type: str
    array: bool
    const: bool

    def ctype(self, real: str):
        """Return what ctypes converts it by, where Real is ``real``."""
        if self.type == "Context":
            return ctypes.c_void_p
        type = real if self.type == "Real" else self.type
        return ArrayParameter(ELEMENTS[type], self.const) if self.array else NUMBERS[type]


class CpuKernels:
    """The kernels of one floating-point type, as attributes by their names in the sources: ``kernels.add(…)``.

    threads: of an operation; each has a workspace of its own. An object serves one thread of the program at a time, and
             its kernels end with it.
    context: its address, for compiled calls that have helpers"""

    def __init__(self, dtype: np.dtype, threads: int = 1):
        self._library, self.family = open_library()
        self.context = self._library.open_context(threads)
        if not self.context:
            raise MemoryError
        self.threads = self._library.context_threads(self.context)
        real = C_NAMES[dtype.name]
        for name, parameters in signatures().items():
            setattr(self, name, self._bind(f"{name}_{real}", parameters, real))

    def __del__(self):
        if getattr(self, "context", None):
            self._library.close_context(self.context)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...

    @property
    def numerics(self) -> str:
        """The facts that decide the bits of results: the sources, the rule of convolutions, and whether products
        are fused with sums."""
        apart = "" if self.family in FUSED else ", products and sums rounded apart"
        rule = Path(__file__).with_name("conv.py").read_bytes()
        return f"kernels {hashlib.sha256(sources_digest().encode() + rule).hexdigest()[:8]}{apart}"

    @property
    def workspace_bytes(self) -> int:
        return self._library.context_bytes(self.context)

    def _bind(self, symbol: str, parameters: Sequence[Argument], real: str):
        function = self._library[symbol]  # an object of its own at each look
        function.restype = None
        function.argtypes = [each.ctype(real) for each in parameters]
        takes_context = bool(parameters) and parameters[0].type == "Context"
        return partial(function, self.context) if takes_context else function


def open_kernels(dtype: np.dtype, threads: int) -> CpuKernels:
    """Return kernels of so many threads. Raises ConfigError for more than can be used."""
    if not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"--threads {threads}: a rank has 1 to {MOST_THREADS}")
    return CpuKernels(dtype, threads)


def threads_wanted() -> int:
    """Return the threads that OMP_NUM_THREADS asks for, and 1 without it."""
    first = os.environ.get(THREADS_SETTING, "").partition(",")[0].strip()
    return min(int(first), MOST_THREADS) if first.isdecimal() and int(first) else 1


@cache
def signatures() -> dict[str, tuple[Argument, ...]]:
    """Return the arguments of each kernel in their order, from the sources."""
    arguments = {}
    for path in sorted(SOURCES.glob("*.cpp")):
        for name, written in KERNEL.findall(path.read_text()):
            matches = [PARAMETER.match(" ".join(each.split())) for each in written.split(",")]
            if not all(matches):
                raise ValueError(f"{path.name}: cannot read the parameters of {name}: {written}")
            arguments[name] = tuple(Argument(match[2], match[3] == "*", bool(match[1])) for match in matches if match)
    return arguments


@cache
def open_library() -> tuple[ctypes.CDLL, str]:
    """Return the library of the best family that this CPU has and that is compiled, and the family's name.

    Raises: ConfigError if there is none, or if ``RINGTRAIN_CPU_FAMILY`` names another."""
    family = choose_family(cpu_families(), compiled_families(), os.environ.get(FAMILY_SETTING, ""))
    return load_library(LIBRARIES / file_name(family)), family


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library, and say what its functions take that are not kernels. Raises ConfigError, also for one with other
    activations: kernels take their places in the list."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(
            f"the kernels of the CPU cannot be loaded: {path}: {error}; install ringtrain again"
        ) from None
    library.open_context.restype, library.open_context.argtypes = ctypes.c_void_p, [ctypes.c_int64]
    steps = [f"{kind}_{step}" for kind in ("mapped", "streamed") for step in STEPS]
    for name in ("close_context", "context_threads", "context_bytes", *steps):
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    library.close_context.restype = None
    library.activation_kinds_float.restype, library.activation_kinds_float.argtypes = ctypes.c_char_p, []
    kinds = library.activation_kinds_float().decode().split()
    if kinds != list(ACTIVATIONS):
        raise ConfigError(
            f"the kernels of the CPU have other activations than ringtrain.ops.base.ACTIVATIONS: {path} has "
            f"{', '.join(kinds)}; wanted {', '.join(ACTIVATIONS)}; complete ops/cpu/sources/activations.cpp, in this "
            "order, and install ringtrain again"
        )
    return library


def steps_of(kind: str, state: ctypes.Array) -> list[Callable[[], Any]]:
    """Return the :data:`STEPS` of a kind of all-reduce, on a state that outlives them."""
    library, _ = open_library()
    at = ctypes.c_void_p(ctypes.addressof(state))
    return [partial(getattr(library, f"{kind}_{step}"), at) for step in STEPS]


def choose_family(having: Sequence[str], compiled: Container[str], wanted: str = "") -> str:
    """Return the best family that the CPU has and that is compiled, or the one that is wanted.

    having: best first
    Raises: ConfigError"""
    usable = [family for family in having if family in compiled]
    if not having:
        raise ConfigError(f"ringtrain has no kernels for this CPU ({platform.machine()}); use --ops reference")
    if not usable:
        raise ConfigError(_none_compiled(LIBRARIES.resolve().parents[2]))
    if wanted and wanted not in usable:
        raise ConfigError(
            f"{FAMILY_SETTING}={wanted}: this machine can run {', '.join(usable)}; unset it, or name one of these"
        )
    return wanted or usable[0]


def _none_compiled(package: Path) -> str:
    """Return the reason; another one where the working folder, as Python's first place, hides an installation."""
    specs = [PathFinder.find_spec(package.name, [folder]) for folder in sys.path]
    specs += [finder.find_spec(package.name, None) for finder in sys.meta_path]  # pip install -e adds one
    for spec in specs:
        installed = Path(spec.origin).resolve().parent if spec and spec.origin else package
        if installed != package:
            return (
                f"{package} has no kernels for this CPU, and hides the ringtrain that is installed in {installed}: "
                f"start in another folder, or install this one by `pip install -e {package.parent}`"
            )
    return (
        f"{LIBRARIES} has no kernels for this CPU that were compiled from the present sources; install ringtrain "
        "again: scripts/quickstart, or pip install as you did"
    )


def compiled_families() -> set[str]:
    """Return the families for which there is a library of these sources."""
    return {family for family in NEEDS if (LIBRARIES / file_name(family)).exists()}
