"""Contestants of processes of their own, which do as they are told over a socket and are timed in turns."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FEWEST, MOST, BLOCK_S = 3, 50, 0.25  # rounds, and the least seconds of a block


# ── a process ─────────────────────────────────────────────────────────────────────────────────────────────────
def options_and_rank() -> tuple[SimpleNamespace, int]:
    """Return the options of this process, its last argument, and its rank: under an MPI, or among the commands."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]
    return SimpleNamespace(**json.loads(sys.argv[-1])), int(rank)


def serve(handlers: dict[str, Callable]) -> None:
    """Do what the program that started this process asks, until it hangs up."""
    options, rank = options_and_rank()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(options.socket)
        with line.makefile("rw") as file:
            print(json.dumps(rank), file=file, flush=True)
            for text in file:
                command = json.loads(text)
                print(json.dumps(handlers[command.pop("do")](**command)), file=file, flush=True)


def on_cores(make: Callable, *methods: str) -> dict[str, Callable]:
    """Return what :func:`serve` does: these methods of ``make(name, cores)``, which is called once for each. This
    process then has so many cores, the first."""
    allowed, make_once = sorted(os.sched_getaffinity(0)), cache(make)

    def call(method: str, name: str, cores: int = 1, **arguments):
        os.sched_setaffinity(0, allowed[:cores])
        return getattr(make_once(name, cores), method)(**arguments)

    return {method: partial(call, method) for method in methods}


def timed(iterate: Callable[[], object], iterations: int, finish: Callable[[], None] = lambda: None) -> float:
    """Return the seconds of an iteration. ``finish`` waits for all issued ones."""
    began = time.perf_counter()
    for _ in range(iterations):
        iterate()
    finish()
    return (time.perf_counter() - began) / iterations


def proportional_set_size() -> int:
    """Return the bytes of this process, of pages that it shares its part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


# ── the program that starts them ──────────────────────────────────────────────────────────────────────────────
class Processes:
    """Processes of one contestant, ``commands`` with options that say where to call, ``ranks`` of them in all."""

    def __init__(self, commands: Sequence[Sequence[str]], options: dict, ranks: int):
        self._folder = tempfile.TemporaryDirectory()
        path = f"{self._folder.name}/socket"
        text = json.dumps(options | {"socket": path})
        environment = {**os.environ, **dict.fromkeys(THREADS, str(options["threads"]))}
        self._lines, self._started = [], []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(ranks)
            listener.settimeout(0.2)
            for number, words in enumerate(commands):
                self._started.append(subprocess.Popen([*words, text], env={**environment, "RANK": str(number)}))
            while len(self._lines) < ranks:
                try:
                    line, _ = listener.accept()
                except TimeoutError:
                    if any(process.poll() for process in self._started):
                        self._fail()
                    continue
                line.settimeout(None)
                self._lines.append(line.makefile("rw"))
        self._lines = [line for _, line in sorted(zip(self._answers(), self._lines, strict=True), key=lambda e: e[0])]

    def ask(self, do: str, **arguments) -> list:
        """Return the answer of each rank; all work at once."""
        for line in self._lines:
            print(json.dumps({"do": do, **arguments}), file=line, flush=True)
        return self._answers()

    def _answers(self) -> list:
        return [json.loads(line.readline() or self._fail()) for line in self._lines]

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for line in self._lines:
            line.close()
        for process in self._started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _fail(self):
        """End, since a process has: it has said why."""
        for process in self._started:
            process.kill()
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class Side:
    """One contestant of a measurement. ``do``: what its blocks are; ``way``: their arguments."""

    name: str
    processes: Processes
    way: dict = field(default_factory=dict)
    do: str = "block"

    def block(self, iterations: int) -> float:
        """Return the seconds of an iteration, of the slowest rank."""
        return max(self.processes.ask(self.do, iterations=iterations, **self.way))


def interleaved(sides: list[Side], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of an iteration by side, one for each round, in which all take a turn. The rounds take about
    so many seconds."""
    lengths = {}
    for side in sides:
        first = min(side.block(1), side.block(1))
        lengths[side.name] = max(1, round(BLOCK_S / first)) if seconds else 1
    began, samples = time.perf_counter(), {side.name: [] for side in sides}
    for done in range(MOST):
        if done >= FEWEST and (time.perf_counter() - began) * (done + 1) / done > seconds:
            break
        for side in sides:
            samples[side.name].append(side.block(lengths[side.name]))
    return samples


def ratios(samples: dict[str, list[float]], side: str) -> list[float]:
    """Return how many times as fast ringtrain is as a side, in each round."""
    return [theirs / ours for theirs, ours in zip(samples[side], samples["ringtrain"], strict=True)]


def ratio_text(ratios: list[float]) -> str:
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f}, {max(ratios):.2f})"


# ── the first iteration ───────────────────────────────────────────────────────────────────────────────────────
def first_iteration(commands: Sequence[Sequence[str]], folder: str, more: dict[str, str]) -> float:
    """Return the seconds from the commands to the line in which the first of them tells of its first iteration."""
    began, seconds, processes = time.perf_counter(), None, []
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), **more}
    for number, words in enumerate(commands):
        out = {"stdout": subprocess.DEVNULL if number else subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(words, cwd=folder, env={**environment, "RANK": str(number)}, **out))
    for line in processes[0].stdout:
        if seconds is None and line.startswith("iteration 1"):
            seconds = time.perf_counter() - began
    codes = [process.wait() for process in processes]
    if any(codes) or seconds is None:
        raise SystemExit(f"no first iteration: {' '.join(commands[0])}")
    return seconds


def forget(folders: Sequence[str]) -> None:
    """Ask the system to forget the content of files, as after a start of the machine: it keeps what others use."""
    for path in (path for folder in folders for path in Path(folder).rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
