"""Compile the kernels that take seconds, those of products by tiles, into CuPy's cache on disk."""

import sys
from itertools import product

from ringtrain.errors import RingtrainError
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.cupy_runtime import make_runtime
from ringtrain.ops.cuda.gemm import by_cores
from ringtrain.ops.cuda.kernels import Kernels, whole_source
from ringtrain.ops.cuda.signatures import parse_signatures
from ringtrain.ops.cuda.tiles import able

SOURCES, TYPES = ("convolution", "gemm"), ("bfloat16", "float32")
HOPPER = "wgmma_convolution", "wgmma_gemm", "join"


def jobs(runtime):
    """Yield (kernels, source, a function of it, defines), in the order of their first use."""
    for act in TYPES:
        kernels = Kernels(runtime, "float32", act)
        cores = {"CORES": int(by_cores(True, kernels.act))}
        for source, tile in product(SOURCES, able(kernels.act.itemsize)):
            yield kernels, source, first_of(source), {**tile.defines, **cores}
        for source, tile in product(HOPPER, wgmma.TILES if wgmma.is_offered(runtime, kernels.act) else ()):
            yield kernels, source, first_of(source), tile.defines


def first_of(source: str) -> str:
    return next(iter(parse_signatures(whole_source(source), {"REAL": "float", "ACT": "float"})))


def main(part: int, of: int) -> int:
    for kernels, source, function, defines in list(jobs(make_runtime(0)))[part::of]:
        kernels(source, function, **defines)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*map(int, sys.argv[1:])))
    except RingtrainError as error:
        sys.exit(f"warm: {error}")
