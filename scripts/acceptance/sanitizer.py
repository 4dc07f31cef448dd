"""compute-sanitizer over tests that run kernels on the device: memcheck, then racecheck, one file after another until
the time is spent; what was not reached is told. Tests that break a kernel on purpose are left out by their marker."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from files import write_rows
from processes import ended

TOOLS = ("memcheck", "racecheck")
# Kernels with barriers and shared memory first, for racecheck.
FILES = (
    "test_ops_cuda_parts.py",
    "test_ops_cuda_products.py",
    "test_ops_cuda_convolution.py",
    "test_ops_cuda_norm.py",
    "test_ops_cuda_loss.py",
    "test_ops_cuda_pool.py",
    "test_ops_cuda_channels.py",
    "test_ops_cuda_compression.py",
    "test_ops_cuda_half.py",
    "test_ops_cuda_exchange.py",
)
GRACE_S = 2.0  # less than this program has itself, where its stage is ended
FOUND, NOTHING_THERE, LEAST_S = 9, 5, 20.0  # exit codes of the sanitizer's finding, and of pytest without a test


def command(tool: str, file: str) -> list[str]:
    test = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "default", "-m", "device"]
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), *test, f"tests/ops/{file}"]


def checked(tool: str, file: str, left: float, output) -> dict:
    told, began = {"tool": tool, "file": file}, time.monotonic()
    if left < LEAST_S:
        return {**told, "status": "not reached"}
    given = {"stdout": output, "stderr": subprocess.STDOUT, "env": {**os.environ, "RINGTRAIN_TEST_DEVICE": "cuda"}}
    code = ended(command(tool, file), left, GRACE_S, **given)
    if code is None:
        return {**told, "status": "not done", "seconds": time.monotonic() - began}
    named = {0: "clean", FOUND: "errors found", NOTHING_THERE: "no test of the device"}
    return {**told, "status": named.get(code, f"exit code {code}"), "seconds": time.monotonic() - began}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=480.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends its children too
    began, rows = time.monotonic(), []
    for tool in TOOLS:
        # Half of the time left for memcheck, the rest for racecheck.
        share = options.seconds / 2 if tool == TOOLS[0] else options.seconds
        for file in FILES:
            rows.append(checked(tool, file, share - (time.monotonic() - began), sys.stdout))
            write_rows(options.folder, rows)
            print(rows[-1], flush=True)
    ended = {row["status"] for row in rows}
    return 0 if "clean" in ended and ended <= {"clean", "not reached", "not done"} else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"compute-sanitizer cannot be started: {error.strerror}")
