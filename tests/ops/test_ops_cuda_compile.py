"""Every source is compiled for the devices that ringtrain is for, and CuPy has what is asked of it. Needs no device."""

import ast
import os
from pathlib import Path

import pytest

from ringtrain.ops import cuda
from ringtrain.ops.cuda import cupy_driver, wgmma
from ringtrain.ops.cuda.cupy_compiler import compiled_file
from ringtrain.ops.cuda.kernels import whole_source
from ringtrain.ops.cuda.signatures import parse_signatures
from ringtrain.ops.cuda.tiles import TILES
from tests.fakes import nvrtc
from tests.ops.cuda_modules import ARCHITECTURES, BY_WGMMA, NAMES, TILED, cases

needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
# Products by tiles: a case takes seconds, all of them several minutes. That of the smallest tile, bfloat16 and sm_90 is
# compiled always; of those for sm_90a alone the largest one, which has the most registers.
ALL = os.environ.get("RINGTRAIN_TEST_COMPILE") == "all"
needs_time = pytest.mark.skipif(not ALL, reason="larger tiles: RINGTRAIN_TEST_COMPILE=all, as scripts/check-full has")


def case(name, defines, architecture):
    usual = defines.get("ACT") == "__nv_bfloat16" and "sm_90" in architecture
    chosen = defines.get("TILE_N") == wgmma.TILES[0].columns if name in BY_WGMMA else defines.get("TILE_M") == 64
    quick = (name not in (*TILED, *BY_WGMMA)) or (usual and chosen)
    identity = "-".join((name, *map(str, defines.values()), architecture))
    return pytest.param(name, defines, architecture, id=identity, marks=() if quick else needs_time)


CASES = [case(name, *each) for name in NAMES for each in cases(name)]


def test_every_source_is_among_the_cases():
    assert {each.values[0] for each in CASES} == set(NAMES) > set(TILED)
    tiled = [each.values for each in CASES if each.values[0] in TILED]
    assert len(tiled) == len(TILED) * len(ARCHITECTURES) * (1 + 4 * len(TILES))  # float64, and four of each tile
    names = [each.values[2] for each in CASES if each.values[0] in BY_WGMMA]
    assert len(names) == len(BY_WGMMA) * 2 * len(wgmma.TILES) and set(names) == {"sm_90a"}


@needs_nvrtc
@pytest.mark.parametrize("name, defines, architecture", CASES)
def test_a_source_compiles_and_keeps_its_numbers_in_registers(name, defines, architecture):
    options = [f"-D{key}={value}" for key, value in defines.items()]
    binary, uses = nvrtc.compile_for(architecture, whole_source(name), options)
    assert binary.startswith(b"\x7fELF")
    assert uses.keys() == parse_signatures(whole_source(name), defines).keys()
    for kernel, use in uses.items():
        assert use.spilled == 0, f"{kernel} spills {use.spilled} bytes"
        assert use.registers <= 255, kernel


def test_maps_have_the_numbers_of_the_driver():
    """Those of cuda.h, in NVIDIA's own binding."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    kinds = driver.CUtensorMapDataType
    assert {
        "float16": int(kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        "bfloat16": int(kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    } == cupy_driver.TYPES
    assert (
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    ) == (cupy_driver.PLAIN, cupy_driver.SWIZZLE_128B, cupy_driver.L2_128B, cupy_driver.FILL_ZERO)


# ── CuPy's names ──────────────────────────────────────────────────────────────────────────────────────────────────
FILES = list(Path(cuda.__file__).parent.glob("*.py"))


def chains(text):
    """The dotted names that begin with ``cupy``, as ("cuda", "Stream")."""
    for node in ast.walk(ast.parse(text)):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
            if parts[-1] in ("_cupy", "cupy"):
                yield tuple(reversed(parts[:-1]))
        if isinstance(node, ast.Name) and node.id == "cupy" and parts:
            yield tuple(reversed(parts))


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.filterwarnings("ignore")  # what CuPy has to say of what is not installed
def test_cupy_has_every_name_that_is_used(cupy):
    used = {chain for path in FILES for chain in chains(path.read_text()) if chain}
    assert len(used) > 15
    for chain in used:
        thing = cupy
        for name in chain:
            assert hasattr(thing, name), f"CuPy {cupy.__version__} has no {'.'.join(chain)}"
            thing = getattr(thing, name)


@needs_nvrtc
@pytest.mark.filterwarnings("ignore")
def test_cupys_nvrtc_compiles_for_an_architecture_that_its_compiler_does_not_take(cupy, tmp_path, monkeypatch):
    from cupy.cuda.compiler import CompileException

    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    options = ("-DREAL=float", "-DACT=__half")
    options += tuple(f"-D{name}={value}" for name, value in wgmma.TILES[-1].defines.items())
    path, is_new = compiled_file(cupy, whole_source("join"), "join.cu", options, "sm_90a")
    assert is_new and not compiled_file(cupy, whole_source("join"), "join.cu", options, "sm_90a")[1]
    binary, _ = nvrtc.compile_for("sm_90a", whole_source("join"), options)
    assert path.parent == tmp_path and path.suffix == ".cubin"
    assert path.read_bytes().startswith(b"\x7fELF") and path.stat().st_size == len(binary)
    with pytest.raises(CompileException, match=r"wrong\.cu\(1\): error"):
        compiled_file(cupy, "nothing", "wrong.cu", options, "sm_90a")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.filterwarnings("ignore")
def test_errors_of_cupy_have_the_names_that_are_told_apart(cupy):
    from cupy.cuda.compiler import CompileException

    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    kinds = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.memory.OutOfMemoryError
    assert [each.__name__ for each in (*kinds, CompileException)] == [
        "CUDARuntimeError", "CUDADriverError", "OutOfMemoryError", "CompileException",
    ]  # fmt: skip
