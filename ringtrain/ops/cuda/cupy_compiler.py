"""Compiles every CUDA source, by NVRTC directly, and keeps the binary in CuPy's folder of compiled sources.

The file's name is made of NVRTC's version, the definitions, the architecture, the text, and the toolkit's headers. No
path of a machine is among these, so kernels that were compiled elsewhere serve here. No device is needed."""

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")  # as CuPy compiles its own
HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")  # what the sources include of the toolkit


def cache_folder() -> Path:
    """Return CuPy's folder of compiled sources."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def architecture_of(cupy, capability: tuple[int, int]) -> str:
    """Return the newest architecture up to a device's that NVRTC knows, as sm_90."""
    number = 10 * capability[0] + capability[1]
    return f"sm_{max(each for each in cupy.cuda.nvrtc.getSupportedArchs() if each <= number)}"


def compiled_file(cupy, source: str, name: str, options: tuple[str, ...], architecture: str) -> tuple[Path, bool]:
    """Return the file with the binary of a source, and whether it was compiled now, as it was not there. Raises:
    CuPy's CompileException with the compiler's output."""
    folder, digest = _headers(cupy)
    options = *OPTIONS, *sorted(options), f"-arch={architecture}"
    key = "\0".join((*map(str, cupy.cuda.nvrtc.getVersion()), *options, digest, source))
    path = cache_folder() / f"ringtrain-{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if path.exists():
        return path, False
    _write(path, _compiled(cupy, source, name, (*folder, *options)))
    return path, True


@cache
def _headers(cupy) -> tuple[tuple[str, ...], str]:
    """Return the compiler's option for the folder of the toolkit's headers, and a digest of those that are used."""
    from cuda.pathfinder import find_nvidia_header_directory

    try:
        folder = find_nvidia_header_directory("cudart")
    except (RuntimeError, ValueError):  # a pathfinder with other names
        folder = None
    if folder is None and cupy.cuda.get_cuda_path():
        folder = f"{cupy.cuda.get_cuda_path()}/include"
    paths = [Path(folder) / name for name in HEADERS] if folder else []
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists()))
    return (f"-I{folder}",) if folder else (), digest.hexdigest()


def _compiled(cupy, source, name, options) -> bytes:
    nvrtc = cupy.cuda.nvrtc
    program = nvrtc.createProgram(source, name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return nvrtc.getCUBIN(program) + bytes(1)  # CuPy returns all but the last byte
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise cupy.cuda.compiler.CompileException(log, source, name, options) from error
    finally:
        nvrtc.destroyProgram(program)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole: other ranks compile the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as aside:
        aside.write(content)
    os.replace(aside.name, path)
