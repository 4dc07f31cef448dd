"""A trial of wgmma in a child process, before this process uses the device: a trap ends all work of a process there.

    python -m ringtrain.ops.cuda.wgmma_trial INDEX TYPE       the child, not for people

The child computes a product of each layout and a convolution of each pass by each tile, beside the usual kernels. Its
verdict lies beside the compiled kernels, for this GPU, driver, compiler and source; one process of a GPU makes the
trial, and the others wait for it. There is no verdict, and wgmma is not offered, where the child gets no context (a GPU
in exclusive mode), takes too long, or is ended from outside."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ringtrain.child import child_command
from ringtrain.errors import DeviceError, DeviceFullError, RingtrainError
from ringtrain.ops.cuda import CudaOps, wgmma
from ringtrain.ops.cuda.checks import import_cupy
from ringtrain.ops.cuda.choice import SETTING, TOLERANCE, WGMMA, kinds_left_out
from ringtrain.ops.cuda.cupy_compiler import cache_folder
from ringtrain.ops.cuda.cupy_runtime import facts_of, make_runtime
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.faults import Unable
from ringtrain.ops.cuda.runtime import Facts
from ringtrain.ops.cuda.trials import distance, sample_of
from ringtrain.ops.geometry import ConvGeometry
from ringtrain.ops.precision import HALVES, active_dtype

LIMIT_S = 120.0  # where nothing is compiled yet, a slow machine takes most of it
NO_VERDICT, FAILED = 2, 3  # exit codes of a child without a context, and of one that compared; a traceback has 1
OUTSIDE = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP  # what ends a child that did nothing wrong
DRIVER = Path("/proc/driver/nvidia/version")
ROWS, COLUMNS, DEPTH = 192, 264, 200  # of the products: each tile is worth its columns, and has edges
IMAGES, HEIGHT, WIDTH, CHANNELS, FEATURES, GEOMETRY = 4, 9, 8, 136, 144, ConvGeometry(3, 1, 1)


# ── the process that asks ─────────────────────────────────────────────────────────────────────────────────────────
def left_out(index: int, precision: str) -> dict[str, str]:
    """Return {WGMMA: why} where a device with wgmma has not passed the trial, else nothing. Before the first use of
    the device. Raises: DeviceError if there is no such device."""
    facts = facts_of(index)
    offered = precision in HALVES and facts.capability == wgmma.CAPABILITY
    if not offered or WGMMA in kinds_left_out(os.environ.get(SETTING, "")):
        return {}
    path = cache_folder() / f"ringtrain-wgmma-{_digest(facts, precision)}.json"
    why = ask(path, child_command(__name__, str(index), precision))
    return {WGMMA: why} if why else {}


def _digest(facts: Facts, precision: str) -> str:
    driver = DRIVER.read_text() if DRIVER.exists() else ""
    compiler = import_cupy().cuda.nvrtc.getVersion()
    digest = hashlib.sha256(repr((facts.uuid, facts.driver, driver, compiler, precision)).encode())
    for path in sorted(Path(__file__).parent.rglob("*.*")):
        if path.suffix in (".py", ".cu", ".cuh"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def ask(path: Path, child: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """Return why wgmma is not offered: nothing where it is. By the verdict in a file, or of a child."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a+"))
            waited = _lock(file)
        except OSError:  # nothing can be kept, or locked: each process makes a trial of its own
            return run(child, limit_s, path)[0]
        file.seek(0)
        with suppress(ValueError, KeyError, TypeError):  # nothing yet, or its writer was killed
            return json.load(file)["why"]
        if waited:
            return _untried("another process tried, and has no verdict")
        why, is_verdict = run(child, limit_s, path)
        if is_verdict:
            file.truncate(0)
            json.dump({"why": why}, file)
        return why


def _lock(file) -> bool:
    """Lock a file until it is closed. Returns whether another process had it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    return False


def run(child: Sequence[str], limit_s: float, path: Path) -> tuple[str, bool]:
    """Return (why wgmma is not offered, whether that is a verdict), of a child that ends after ``limit_s``."""
    try:
        done = subprocess.run(
            child, timeout=limit_s, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return _untried(f"it was not done after {limit_s:g} s"), False
    code = done.returncode
    if code == 0:
        return "", True
    why = (done.stderr.strip().splitlines() or [f"ended by signal {-code}" if code < 0 else f"exit code {code}"])[-1]
    if code != FAILED and (code > 0 or -code in OUTSIDE):
        return _untried(why), False
    return f"a child process tried it on this GPU, and failed: {why}; to try again, remove {path}", True


def _untried(why: str) -> str:
    return f"a child process could not try it on this GPU ({why})"


# ── the child ─────────────────────────────────────────────────────────────────────────────────────────────────────
class Beside:
    """In the place of a Choice: takes the first variant, and compares with it the ``compared`` variants by wgmma."""

    def __init__(self):
        self.compared = 0

    def __call__(self, device, work, variants, trial, flops=0, factors=None):
        first, *others = variants()
        result, most = trial(first), TOLERANCE[device.numbers(factors)]
        wanted = sample_of(device, result)
        for each in others:
            if WGMMA in each.name:
                device.runtime.clear(result, device.stream)
                if not distance(sample_of(device, trial(each)), wanted) <= most:
                    raise Unable(
                        f"{work[0]} by {each.name} differs from {first.name} by more than {most:g} of the norm"
                    )
                self.compared += 1
        return first


def compare(runtime, precision: str) -> int:
    """Compare every product and convolution with the usual kernels. Returns their number. Raises: DeviceError for one
    that differs, or that the device cannot do."""
    choice, random = Beside(), np.random.default_rng(0)
    make_ops: Any = CudaOps  # it is composed of its parts, which a checker of types does not see
    active = active_dtype(precision, "float32")
    ops = make_ops(runtime, "float32", precision, Device(runtime, "float32", active, choice=choice))

    def normal(*shape, dtype=active):
        return ops.from_host(random.standard_normal(shape).astype(dtype))

    for turns in product((False, True), repeat=2):
        a, b = ((DEPTH, ROWS), (ROWS, DEPTH)), ((COLUMNS, DEPTH), (DEPTH, COLUMNS))
        factors = [normal(*shapes[not turned]) for shapes, turned in zip((a, b), turns, strict=True)]
        for dtype in (ops.active, ops.dtype):  # tiles that are rounded, and sums of parts
            ops.product(*factors, ops.empty((ROWS, COLUMNS), dtype), *turns)
    image, out = (IMAGES, HEIGHT, WIDTH, CHANNELS), (IMAGES, HEIGHT, WIDTH, FEATURES)
    weights = GEOMETRY.kernel, GEOMETRY.kernel, CHANNELS, FEATURES
    x, w, y, dy = normal(*image), normal(*weights, dtype=ops.dtype), ops.empty(out, ops.active), normal(*out)
    ops.conv2d(x, w, None, y, GEOMETRY)
    ops.conv2d_back(x, w, y, dy, ops.empty(weights), None, ops.empty(image, ops.active), GEOMETRY)
    ops.synchronize()
    return choice.compared


def main(index: str, precision: str) -> int:
    try:
        runtime = make_runtime(int(index))
    except RingtrainError as error:
        print(error, file=sys.stderr)
        return NO_VERDICT
    try:
        compare(runtime, precision)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return NO_VERDICT if isinstance(error, DeviceFullError) else FAILED
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # after a trap, what frees memory on the device fails too, and would have the last word
