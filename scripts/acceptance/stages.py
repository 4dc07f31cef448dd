"""The stages of the acceptance, the most telling first: what each runs, what it wants, and what its files say."""

import datetime
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = [sys.executable]
RINGTRAIN = [*PYTHON, "-m", "ringtrain"]
# Those that are about the device, and not about its fakes or the compiler. A library's warning fails none of them.
DEVICE_TESTS = ["tests/ops", "tests/train", "-k", "cuda and not compile and not shim and not host_cuda and not spilled"]
PYTEST = ["-m", "pytest", "-q", "--maxfail", "10", "-W", "default", "-p", "no:cacheprovider"]
ON_DEVICE = "RINGTRAIN_TEST_DEVICE=cuda"

Read = Callable[[Path], tuple[list[dict], str]]


@dataclass(frozen=True, slots=True)
class Stage:
    """seconds: the most that it may take. ``command(folder)``: what is run, in the root of the checkout.
    ``read(folder)``: (rows of its table, what falls short of ``wanted``; nothing where nothing does). ``unable``: what
    its output says where the machine cannot do it at all."""

    name: str
    title: str
    wanted: str
    seconds: float
    command: Callable[[Path], list]
    read: Read
    unable: str = ""


def facts() -> dict:
    """Of the machine. ``gpu`` is None where there is none, and ``why`` says so."""
    found = {"gpu": None, "date": datetime.date.today().isoformat(), "commit": _said("git", "rev-parse", "HEAD")}
    told = _said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    if not told:
        return found | {"why": "there is no GPU here: nvidia-smi names none. Run this on a machine that has one"}
    found["gpu"], found["driver"], found["memory"] = (part.strip() for part in told.splitlines()[0].split(","))
    names = {"cupy": "cupy-cuda13x", "torch": "torch", "mpi4py": "mpi4py", "ringtrain": "ringtrain"}
    found |= {name: _version(package) for name, package in names.items()}
    return found | {"mpi": _said("mpirun", "--version").splitlines()[0] if shutil.which("mpirun") else None}


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# ── what stages leave ─────────────────────────────────────────────────────────────────────────────────────────────
def rows_of(folder: Path, name: str = "rows.json") -> list[dict]:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else []


def nothing(folder: Path) -> tuple[list[dict], str]:
    return [], ""


def read_losses(folder: Path) -> tuple[list[dict], str]:
    rows = rows_of(folder)
    apart = [f"{row['what']} at {row['ranks']} ranks" for row in rows if row["largest difference"] > 1e-4]
    return rows, f"losses are further apart than 1e-4: {', '.join(apart)}" if apart else ""


def read_ratios(least: float) -> Read:
    """Of training beside PyTorch: each is to be at least so many times as fast as eager."""

    def read(folder: Path) -> tuple[list[dict], str]:
        rows = []
        for row in rows_of(folder):
            told = {"model": row["model"], "batch": row["batch"], "precision": row["precision"]}
            told |= {f"{side}, images/s": rate for side, rate in row["images_per_s"].items()}
            rows.append(told | {f"× {side}": ratio for side, ratio in row["ratio"].items()})
        slow = [row["model"] for row in rows if row["× eager"] < least]
        return rows, f"below {least:g} times eager: {', '.join(slow)}" if slow else ""

    return read


def read_allreduce(folder: Path) -> tuple[list[dict], str]:
    """Every algorithm's time by size, and how many times faster than through the host by the MPI."""
    rows, short = [], []
    for path in sorted(folder.glob("*-ranks.json")):
        for row in json.loads(path.read_text())["rows"]:
            kept = ("ranks", "algorithm", "transport", "way", "bytes", "status", "reason")
            rows.append({key: row[key] for key in kept if row.get(key) not in (None, "")})
            if row.get("median_s"):
                rows[-1] |= {"ms": 1e3 * row["median_s"], "wrong": row.get("wrong")}
    staged = {(row["ranks"], row["bytes"]): row["ms"] for row in rows if row["algorithm"] == "mpi" and "ms" in row}
    for row in rows:
        base = staged.get((row["ranks"], row["bytes"]))
        if base and "ms" in row:
            row["× mpi through the host"] = base / row["ms"]
            if row["algorithm"] == "mapped" and base < 5 * row["ms"] and row["bytes"] >= 1 << 20:
                short.append(f"{row['bytes'] >> 20} MiB at {row['ranks']} ranks")
    for ranks in (2, 4):
        if not any(row["ranks"] == ranks and row["algorithm"] == "mapped" and "ms" in row for row in rows):
            short.append(f"nothing measured at {ranks} ranks")
    return rows, f"mapped is not 5 times as fast as through the host: {', '.join(short)}" if short else ""


def read_kernels(folder: Path) -> tuple[list[dict], str]:
    return rows_of(folder), ""


# ── what they run ─────────────────────────────────────────────────────────────────────────────────────────────────
def pytorch(*arguments: str) -> Callable[[Path], list]:
    program = str(ROOT / "scripts" / "benchmarks" / "pytorch.py")
    return lambda folder: [*PYTHON, program, "--device", "cuda", *arguments, "--json", str(folder / "rows.json")]


def allreduce(folder: Path) -> list:
    line = "mpirun --oversubscribe --bind-to none -np {n} {python} -m ringtrain bench-allreduce --device cuda "
    line += "-b 1M -e 256M -f 4 -n 10 -w 2 --algorithm mpi,mapped,one-shot,ring,nccl --json {folder}/{n}-ranks.json"
    each = (line.format(n=n, python=sys.executable, folder=folder) for n in (2, 4))
    return ["bash", "-ec", "; ".join(each)]


def tests(folder: Path) -> list:
    return ["env", ON_DEVICE, *PYTHON, *PYTEST, *DEVICE_TESTS]


def sanitized(folder: Path) -> list:
    tool = "compute-sanitizer --error-exitcode 9 --tool {} "
    test = shlex.join([*PYTHON, *PYTEST, *(each for each in DEVICE_TESTS if each != "tests/train")])
    return ["env", ON_DEVICE, "bash", "-ec", "; ".join(tool.format(name) + test for name in ("memcheck", "racecheck"))]


def program(name: str, *arguments: str) -> Callable[[Path], list]:
    return lambda folder: [*PYTHON, str(HERE / name), str(folder), *arguments]


SAME = "the same figures as on the CPU"
STAGES = (
    Stage("doctor", "What the machine offers", "no line fails", 40, lambda folder: [*RINGTRAIN, "doctor"], nothing),
    Stage(
        "losses",
        "Losses of 20 iterations, 1, 2 and 4 ranks",
        f"{SAME}, to 1e-4",
        140,
        program("losses.py"),
        read_losses,
    ),
    Stage(
        "resnet50",
        "resnet50, 224 × 224, beside PyTorch",
        "at least 1.0 of eager",
        170,
        pytorch("resnet50", "--batch", "128", "--precision", "bfloat16", "--compile", "--blocks", "5"),
        read_ratios(1.0),
    ),
    Stage(
        "allreduce",
        "All-reduce of device memory, 2 and 4 ranks on one GPU",
        "mapped at least 5 times as fast as by the host",
        90,
        allreduce,
        read_allreduce,
    ),
    Stage(
        "nets",
        "Small nets beside PyTorch",
        "at least 1.5 of eager",
        70,
        pytorch("lenet", "cifar10_full", "resnet18", "mlp", "--batch", "128"),
        read_ratios(1.5),
    ),
    Stage(
        "kernels",
        "Kernels of resnet50 beside their floor",
        "stated",
        60,
        program("kernels.py", "--model", "resnet50"),
        read_kernels,
    ),
    Stage("tests", "Operations and training by the tests, on the device", "all pass", 150, tests, nothing),
    Stage(
        "sanitizer",
        "memcheck and racecheck of each kernel",
        "clean",
        240,
        sanitized,
        nothing,
        unable="Device not supported",
    ),
)
