"""The kernels of ``sources/``: compiled for their types at the first use, and launched.

    kernels("elementwise", "add")(blocks, threads, stream, a, b, y, count)

A source uses REAL for the type of weights and of arithmetic, and ACT for the type of activations. Its includes of this
folder are inserted before it is compiled: the compiler's cache on disk identifies a source by its text alone."""

import re
from functools import cache
from importlib.resources import files

import numpy as np

from ringtrain.errors import nearest
from ringtrain.ops.cuda.signatures import C_TYPES, convert, parse_signatures

SOURCES = files("ringtrain.ops.cuda") / "sources"
# What a source is compiled for, where it is not for every device.
ARCHITECTURES = {"wgmma_gemm": "sm_90a", "wgmma_convolution": "sm_90a", "join": "sm_90a"}
INCLUDE = re.compile(r'^[ \t]*#include "(\w+\.cuh)"[^\n]*\n', re.MULTILINE)


class KernelLaunch:
    """One kernel with its parameters."""

    def __init__(self, name, kernel, parameters):
        self.name, self.kernel, self.parameters = name, kernel, parameters

    def __call__(self, blocks, threads, stream, *arguments, shared_bytes=0):
        """Launch it. ``blocks`` and ``threads``: counts, or up to three extents. Numbers are converted to their
        parameters' types. None is a null pointer. ``shared_bytes``: dynamic shared memory of a block."""
        converted = convert(self.name, self.parameters, arguments)
        self.kernel.launch(_extents(blocks), _extents(threads), stream, converted, shared_bytes)


class Kernels:
    """The kernels of one device and one pair of types."""

    def __init__(self, runtime, real, act, modules=None):
        self._runtime = runtime
        self.real, self.act = np.dtype(real), np.dtype(act)
        self._types = {"REAL": C_TYPES[self.real.name], "ACT": C_TYPES[self.act.name]}
        self._modules = {} if modules is None else modules  # of all types
        self._launches = {}
        self._siblings = {self.act.name: self}

    def of(self, dtype) -> "Kernels":
        """Return the kernels for arrays of another type in ACT's place; the arithmetic is float64 for float64, else
        float32."""
        name = np.dtype(dtype).name
        if name not in self._siblings:
            real = "float64" if name == "float64" else "float32"
            self._siblings[name] = Kernels(self._runtime, real, dtype, self._modules)
        return self._siblings[name]

    def __call__(self, source: str, function: str, **defines) -> KernelLaunch:
        """Return the kernel ``function`` of ``source``.cu; ``defines``: further names for its compilation.

        Raises: LookupError for an unknown name, DeviceError with the compiler's output."""
        key = source, function, *defines.items()
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = self._find(source, function, defines)
        return launch

    def _find(self, source, function, defines):
        compiled, parameters = self._module(source, {**self._types, **defines})
        if function not in parameters:
            raise LookupError(f"kernel {function!r} is not in {source}.cu; {nearest(function, parameters)}")
        return KernelLaunch(function, compiled[function], parameters[function])

    def _module(self, source, defines):
        key = source, *sorted(defines.items())
        if key not in self._modules:
            text = whole_source(source)
            options = tuple(f"-D{name}={value}" for name, value in defines.items())
            parameters = parse_signatures(text, {name: str(value) for name, value in defines.items()})
            compiled = self._runtime.compile(text, f"{source}.cu", options, ARCHITECTURES.get(source))
            self._modules[key] = compiled, parameters
        return self._modules[key]


@cache
def whole_source(source: str) -> str:
    """Return the text of ``source``.cu with the headers of this folder inserted, each once.

    Raises: LookupError if there is no such source."""
    known = [path.name.removesuffix(".cu") for path in SOURCES.iterdir() if path.name.endswith(".cu")]
    if source not in known:
        raise LookupError(f"source {source!r} is not known; {nearest(source, known)}")
    return _expanded(f"{source}.cu", set())


def _expanded(name, seen):
    seen.add(name)
    text = (SOURCES / name).read_text()
    parts, end = [f'#line 1 "{name}"\n'], 0
    for match in INCLUDE.finditer(text):
        parts.append(text[end : match.start()])
        if match[1] not in seen:
            parts.append(_expanded(match[1], seen))
        end = match.end()
        parts.append(f'#line {text.count(chr(10), 0, end) + 1} "{name}"\n')
    return "".join([*parts, text[end:]])


def _extents(count):
    return count if isinstance(count, tuple) else (count,)
