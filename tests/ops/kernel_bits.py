"""The bits of every operation, to compare builds of the CPU's kernels, in this process or in another:

python -m tests.ops.kernel_bits CALLS

prints the SHA-256 of the results of each call of the file CALLS, which it makes where there is none: the random numbers
of two machines may differ.
"""

import hashlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

from ringtrain.ops.cpu import CpuOps
from tests.ops.cases import Call, calls, deep_calls, perform, wide_calls


def all_calls() -> list[tuple[str, Call]]:
    """(type of the operations, call)"""
    return [
        (dtype, call)
        for dtype in ("float32", "float64")
        for call in (*calls(dtype, 5), *wide_calls(dtype), *deep_calls(dtype))
    ]


def digests(cases: list[tuple[str, Call]]) -> Iterator[str]:
    """A line for each call, which ends with the digest of its results."""
    ops = {dtype: CpuOps(dtype) for dtype in ("float32", "float64")}
    for dtype, call in cases:
        results = perform(ops[dtype], call)
        digest = hashlib.sha256(b"".join(name.encode() + results[name].tobytes() for name in sorted(results)))
        yield f"{dtype} {call} {digest.hexdigest()[:16]}"


def main(file: str) -> None:
    path = Path(file)
    if not path.exists():
        path.write_bytes(pickle.dumps(all_calls()))
    for line in digests(pickle.loads(path.read_bytes())):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
