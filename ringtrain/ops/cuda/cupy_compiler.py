"""Sources compiled for an architecture by its name, as sm_90a, which CuPy's compiler does not take: by NVRTC directly.

The binary is kept in CuPy's folder of compiled sources, and CuPy loads it from there.
"""

import hashlib
import os
import tempfile
from pathlib import Path

OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")  # as CuPy compiles the others


def cache_folder() -> Path:
    """Return CuPy's folder of compiled sources."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")


def compiled_file(cupy, source: str, name: str, options: tuple[str, ...], architecture: str) -> Path:
    """Return the file with the binary of a source, which is compiled if it is not there. Raises: CuPy's
    CompileException with the compiler's output.
    """
    options = *OPTIONS, *options, f"-arch={architecture}"
    key = "\0".join((*map(str, cupy.cuda.nvrtc.getVersion()), *options, source))
    path = cache_folder() / f"ringtrain-{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    if not path.exists():
        _write(path, _compiled(cupy, source, name, options))
    return path


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
