"""What each CUDA source is compiled with, in all the ways in which it is used: for the tests of the compiler, and for
scripts/gpu-kernels, which compiles ahead."""

import re
from itertools import permutations

from ringtrain.ops.base import ACTIVATIONS
from ringtrain.ops.cuda import wgmma
from ringtrain.ops.cuda.elementwise import UNITS
from ringtrain.ops.cuda.kernels import ARCHITECTURES as SPECIFIC
from ringtrain.ops.cuda.kernels import SOURCES
from ringtrain.ops.cuda.tiles import able
from ringtrain.ops.update import KINDS

NAMES = sorted(path.name.removesuffix(".cu") for path in SOURCES.iterdir() if path.name.endswith(".cu"))
ARCHITECTURES = "sm_80", "sm_90", "sm_100"  # A100, H100 and H200, B200
REALS = ("float", "float"), ("double", "double"), ("float", "__half"), ("float", "__nv_bfloat16")
SIZES = {"float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2}
TILED = "gemm", "convolution", "convolution_normalised"
BY_WGMMA = tuple(SPECIFIC)  # by tiles of their own, for one architecture
# What a source is compiled with besides, in each of the ways in which it is used; what is not named here has one way.
WAYS = {
    "strips": [{"UNIT": unit} for unit in UNITS.values()],
    "activations": [{"KIND": kind} for kind in ACTIVATIONS],
    "norm_back": [{"MASKED_BY": mask} for mask in range(4)],
    "update": [{"KIND": kind} for kind in range(len(KINDS))],
    "cast": [{"FROM": a, "TO": b} for a, b in permutations(SIZES, 2)],
}


def types(name):
    """Those that make a difference to a source."""
    text = (SOURCES / f"{name}.cu").read_text()
    if re.search(r"\bACT\b|to_act", text):
        return REALS
    return REALS[:2] if re.search(r"\bREAL\b|to_real", text) else REALS[:1]


def definitions(name, real, act):
    """All that a source is compiled with for a pair of types. Tensor cores are for all but float64, and float32 that is
    wanted whole; products by wgmma are of both types of 2 bytes."""
    plain = {"REAL": real, "ACT": act}
    if name in BY_WGMMA:
        return [{**plain, **tile.defines} for tile in (wgmma.TILES if SIZES[act] == 2 else ())]
    if name in TILED:
        cores = {"float": (0, 1), "double": (0,)}.get(act, (1,))
        return [{**plain, **tile.defines, "CORES": each} for tile in able(SIZES[act]) for each in cores]
    return [{**plain, **variant} for variant in WAYS.get(name, [{}])]


def cases(name):
    """(definitions, architecture) of a source, in every way and for every architecture."""
    for real, act in REALS if name in (*TILED, *BY_WGMMA) else types(name):
        for defines in definitions(name, real, act):
            for architecture in [SPECIFIC[name]] if name in BY_WGMMA else ARCHITECTURES:
                yield defines, architecture
