"""What benchmarks print and keep: tables of Markdown, the machine and versions, files that others read meanwhile."""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = "## Figures\n"
TORCH = "torch==2.13.0"
PLACES = ("--torch", "--json", "--page", "--out")  # options that name places of one machine


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def command_line(words: Sequence[str], verb: str) -> str:
    """Return the command without the places of this machine."""
    kept = [word for at, word in enumerate(words) if word not in PLACES and (at == 0 or words[at - 1] not in PLACES)]
    return shlex.join(["scripts/bench", verb, *(word for word in kept if not word.startswith(PLACES))])


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine() -> str:
    names = [each for each in Path("/proc/cpuinfo").read_text().splitlines() if each.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{os.cpu_count()} cores, {name}, Linux {platform.release()}"


def circumstances(command: str, load_before: float, load_after: float | None = None) -> str:
    """Return the command, the commit, the date, the machine and its load, in words."""
    load_after = os.getloadavg()[0] if load_after is None else load_after
    loads = f"load average {load_before:.1f} before, {load_after:.1f} after"
    return f"`{command}`, commit {commit()}, {time.strftime('%Y-%m-%d')}, {machine()}, {loads}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of both programs that compare with PyTorch."""
    parser.add_argument("--threads", type=int, default=1, help="of a rank, on the CPU [1]")
    parser.add_argument("--seconds", type=float, default=15, help="of the blocks of a net at a number of ranks [15]")
    parser.add_argument("--torch", default=sys.executable, metavar="PYTHON", help="a Python that has torch")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--page", help=f"write the tables to this file, after its heading {FIGURES.strip()}")


def changed(options: argparse.Namespace, **values) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), **values})


def ready_torch(options) -> str:
    """Install torch into --torch unless it is there. Returns the versions of torch and that Python."""
    code = "import torch, platform; print(f'torch {torch.__version__}, Python {platform.python_version()}')"
    asked = subprocess.run([options.torch, "-c", code], capture_output=True, text=True)
    if asked.returncode == 0:
        return asked.stdout.strip()
    if getattr(options, "device", "cpu") == "cuda":
        raise SystemExit("bench pytorch: torch is not installed: install a build for the CUDA of this driver")
    subprocess.run([options.torch, "-m", "pip", "install", "--quiet", TORCH], check=True)
    return ready_torch(options)


def write(path: str | None, text: str) -> None:
    """Write a file, whole or not at all: another process may read it at any time."""
    if path:
        part = Path(f"{path}.part")
        part.write_text(text)
        os.replace(part, path)


def write_page(path: str | None, text: str) -> None:
    """Put the tables in the place of those that the page has."""
    before = Path(path).read_text().partition(FIGURES)[0] if path and Path(path).exists() else ""
    write(path, f"{before}{FIGURES}\n{text}")


def numbers(text: str) -> list[int]:
    """Parse numbers such as 1,2: the type of an option. Raises ArgumentTypeError."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: give numbers such as 1,2") from None
