"""The compiler of CUDA sources, which needs no device: what it makes of a source, and what that takes of a thread."""

import importlib.util
import re
from dataclasses import dataclass
from functools import cache

from ringtrain.ops.cuda.cupy_compiler import OPTIONS

NEEDED = ("cuda.bindings.nvrtc", "cuda.pathfinder")
USAGE = re.compile(
    r"Function properties for (\w+)\s+(?:ptxas\s+\.\s+)?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r"\s*ptxas info\s*: Used (\d+) registers"
)


# What ptxas says of products by wgmma for which it waits of its own accord, and of setmaxnreg that it ignores. It says
# wgmma.wait_group of a wait that it injects, or warpgroup.wait (CUDA 13.0).
SLOWER = re.compile(
    r"^.*(?:(?:wgmma|warpgroup).*(?:serialized|injected)|setmaxnreg.*ignored).*$", re.MULTILINE | re.IGNORECASE
)


@dataclass(frozen=True)
class Use:
    """Of one thread. Units: registers, and bytes of local memory."""

    registers: int
    stack: int
    spilled: int


@cache
def missing() -> str | None:
    """Why it cannot be used here; None where it can."""
    try:
        if not all(importlib.util.find_spec(name) for name in NEEDED):
            return "cuda-bindings is not installed"
        from cuda.bindings import nvrtc
        from cuda.pathfinder import find_nvidia_header_directory

        nvrtc.nvrtcVersion()
        if find_nvidia_header_directory("cudart") is None:
            return "the headers of nvidia-cuda-runtime are not installed"
    except (ImportError, RuntimeError) as error:
        return f"NVRTC cannot be used: {str(error).splitlines()[0]}"
    return None


def compile_for(architecture: str, source: str, options=()) -> tuple[bytes, dict[str, Use]]:
    """The binary, and what each kernel uses. Raises: RuntimeError with the compiler's words, also of what it makes
    slower."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import find_nvidia_header_directory

    headers = find_nvidia_header_directory("cudart")
    command = *OPTIONS, f"-arch={architecture}", f"-I{headers}", "--ptxas-options=-v", *options
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], [])
    assert int(error) == 0, error
    (error,) = nvrtc.nvrtcCompileProgram(program, len(command), [each.encode() for each in command])
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
    if int(error):
        raise RuntimeError(log)
    if SLOWER.search(log):
        raise RuntimeError(SLOWER.search(log)[0])
    binary = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(program)
    uses = USAGE.findall(log)
    return binary, {name: Use(int(used), int(stack), int(out) + int(back)) for name, stack, out, back, used in uses}


def _text(size, get, program):
    _, count = size(program)
    memory = b" " * count
    get(program, memory)
    return memory
