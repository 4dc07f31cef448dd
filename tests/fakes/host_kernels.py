"""The kernels of a CUDA source compiled for the host, by g++ with ``cuda_shim.h``; kept by the hash of their text."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ringtrain.errors import DeviceError
from ringtrain.ops.cuda.signatures import parse_signatures

SHIM = Path(__file__).parent / "cuda_shim.h"
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w")
DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]+?)\s+(\w+)\s*\[\s*\]\s*;")
RUN = """
static void run_{name}(void **arguments) {{ {name}({arguments}); }}
extern "C" __attribute__((visibility("default")))
const char *launch_{name}(void **arguments, const unsigned *dims, unsigned long long dynamic_bytes) {{
    return shim::launch(run_{name}, arguments, dims, dynamic_bytes);
}}
"""


def compiler() -> str | None:
    """The path of g++, or None where there is none."""
    return shutil.which("g++")


@cache
def folder() -> Path:
    """Where compiled kernels are kept, of this user alone."""
    path = Path(tempfile.gettempdir()) / f"ringtrain-host-cuda-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def build(source: str, name: str, options) -> tuple[dict, dict, bool]:
    """The launch functions and the parameters of each kernel, and whether it was compiled now.

    Raises: DeviceError with the compiler's words.
    """
    parameters = parse_signatures(
        source, dict(option[2:].split("=", 1) for option in options if option.startswith("-D"))
    )
    text = _whole(source, parameters)
    digest = hashlib.sha256("\0".join((text, _headers(), *FLAGS, *options)).encode()).hexdigest()
    path = folder() / f"{Path(name).stem}-{digest[:32]}.so"
    fresh = not path.exists()
    if fresh:
        _compile(text, name, options, path)
    library = ctypes.PyDLL(str(path))  # one at a time: its threads are not those of the machine
    return {each: _function(library, each) for each in parameters}, parameters, fresh


def _whole(source, parameters):
    """The source with dynamic shared memory as the shim's, and a function to launch each kernel by."""
    source = DYNAMIC.sub(r"static \1 *const \2 = (\1 *)shim::dynamic_shared;", source)
    # Without a name outside: g++ from 14 on keeps arrays of templates with such a name in another kind of section.
    return f"namespace {{\n{source}\n}}\n" + "".join(
        RUN.format(name=name, arguments=", ".join(f"*({_c_type(p)} *)arguments[{i}]" for i, p in enumerate(each)))
        for name, each in parameters.items()
    )


def _c_type(parameter):
    return f"{'const ' if parameter.const else ''}{parameter.type} {'*' if parameter.array else ''}"


@cache
def _headers():
    return "".join(path.read_text() for path in sorted(SHIM.parent.glob("*.h")))


def _compile(text, name, options, path):
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        unit, built = Path(scratch) / f"{Path(name).stem}.cpp", Path(scratch) / path.name
        unit.write_text(text)
        arguments = f"-I{SHIM.parent}", "-include", str(_precompiled_shim()), "-shared", str(unit), "-o", str(built)
        done = subprocess.run([compiler(), *FLAGS, *options, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise DeviceError(f"{name} could not be compiled:\n{done.stderr[:4000]}")
        built.rename(path)


@cache
def _precompiled_shim() -> Path:
    """The shim beside what g++ made of it: reading it takes longer than most sources."""
    digest = hashlib.sha256("\0".join((_headers(), *FLAGS)).encode()).hexdigest()
    home = folder() / f"shim-{digest[:32]}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
            headers = Path(scratch) / home.name
            headers.mkdir()
            shutil.copy(SHIM, headers)
            header = str(headers / SHIM.name)
            subprocess.run([compiler(), *FLAGS, f"-I{SHIM.parent}", "-x", "c++-header", header], check=True)
            with suppress(OSError):  # another process was first
                headers.rename(home)
    return home / SHIM.name


def _function(library, name):
    function = getattr(library, f"launch_{name}")
    function.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong
    function.restype = ctypes.c_char_p
    return function
