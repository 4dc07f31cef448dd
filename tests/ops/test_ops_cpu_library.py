"""The library of a CPU: its family, its signatures, what it refuses, and the same bits from every build."""

import os
import platform
import re
import subprocess
import sys
from importlib.util import spec_from_file_location

import numpy as np
import pytest

from ringtrain.errors import ConfigError
from ringtrain.ops.cpu import compile, library
from ringtrain.ops.cpu.compile import FAMILIES, NEEDS, SOURCES, Compiler, compile_family, compilers
from ringtrain.ops.cpu.library import Argument, CpuKernels, choose_family, load_library, signatures
from tests.ops.kernel_bits import all_calls, digests
from tests.says import says

V4, V3, V2 = FAMILIES["x86_64"]
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is no x86-64")


@pytest.mark.parametrize(
    ("machine", "flags", "families"),
    [
        ("x86_64", NEEDS[V4], [V4, V3, V2]),
        ("x86_64", NEEDS[V4] - {"avx512bw"}, [V3, V2]),
        ("x86_64", NEEDS[V3], [V3, V2]),
        ("x86_64", NEEDS[V3] - {"fma"}, [V2]),
        ("x86_64", NEEDS[V2], [V2]),
        ("x86_64", NEEDS[V2] - {"sse4_2"}, []),
        ("x86_64", set(), []),
        ("aarch64", set(), ["aarch64"]),
    ],
)
def test_the_families_of_a_cpu_are_read_from_its_flags(monkeypatch, machine, flags, families):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(compile, "cpu_flags", lambda: {*flags, "fpu", "sse2"})
    assert compile.cpu_families() == families


def test_flags_that_cannot_be_read_are_none(monkeypatch, tmp_path):
    monkeypatch.setattr(compile, "Path", lambda path: tmp_path / "none")
    assert compile.cpu_flags() == set()


def test_the_best_family_that_is_compiled_is_taken():
    assert choose_family([V4, V3, V2], {V4, V3, V2}) == V4
    assert choose_family([V4, V3, V2], {V3, V2}) == V3
    assert choose_family([V4, V3, V2], {V4, V3, V2}, wanted=V2) == V2


@pytest.mark.parametrize(
    ("having", "compiled", "wanted", "message"),
    [
        ([], {V3}, "", says("--ops", platform.machine())),
        ([V3, V2], {V4}, "", says(library.LIBRARIES)),
        ([V3, V2], {V4, V3, V2}, V4, says("RINGTRAIN_CPU_FAMILY", V4, f"{V3}, {V2}")),
        ([V4, V3], {V3}, V4, says("RINGTRAIN_CPU_FAMILY", V4, V3)),
        ([V3], {V3}, "avx", says("RINGTRAIN_CPU_FAMILY", "avx", V3)),
    ],
)
def test_a_family_that_cannot_be_had_is_refused(having, compiled, wanted, message, monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # there is no other ringtrain that this one hides
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ConfigError, match=message):
        choose_family(having, compiled, wanted)


def test_a_checkout_that_hides_an_installation_says_so(tmp_path, monkeypatch):
    """As `python -m ringtrain.torch` does in a checkout, which is then Python's first place to look."""
    checkout, installed = (tmp_path / name / "ringtrain" for name in ("checkout", "site-packages"))
    for folder in (checkout, installed):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    monkeypatch.setattr(library, "LIBRARIES", checkout / "ops" / "cpu" / "libraries")
    monkeypatch.setattr(sys, "path", [str(checkout.parent), str(installed.parent)])
    monkeypatch.setattr(sys, "meta_path", [])
    words = says(checkout, installed, checkout.parent)
    with pytest.raises(ConfigError, match=words):
        choose_family([V3], set())
    monkeypatch.setattr(sys, "path", [str(checkout.parent)])
    with pytest.raises(ConfigError, match=says(library.LIBRARIES)):
        choose_family([V3], set())
    monkeypatch.setattr(sys, "meta_path", [Editable(installed)])
    with pytest.raises(ConfigError, match=words):
        choose_family([V3], set())


class Editable:
    """The finder that `pip install -e` adds."""

    def __init__(self, package):
        self._package = package

    def find_spec(self, name, path=None, target=None):
        return spec_from_file_location(name, self._package / "__init__.py")


def command(*arguments, **environment):
    program = [sys.executable, "-m", "ringtrain", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)


def test_the_command_line_refuses_a_family_without_a_traceback(tmp_path):
    done = command("train", "--iterations", "1", "--out", str(tmp_path / "run"), RINGTRAIN_CPU_FAMILY="none")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(says("RINGTRAIN_CPU_FAMILY", "none"), done.stderr)


def test_commands_that_compute_nothing_need_no_kernels():
    done = command("data", "info", "digits", RINGTRAIN_CPU_FAMILY="none")
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "kernels.so").write_text("no ELF")
    with pytest.raises(ConfigError, match=re.escape(f"cannot be loaded: {tmp_path / 'kernels.so'}: ")):
        load_library(tmp_path / "kernels.so")


def test_every_kernel_of_the_sources_is_in_the_library():
    """Under both types, and none escapes the pattern that reads them."""
    text = "".join(path.read_text() for path in SOURCES.iterdir() if path.name != "vector.hpp")
    assert len(re.findall(r"\bKERNEL\b", text)) == len(signatures()) > 0
    loaded, _ = library.open_library()
    for name in signatures():
        assert loaded[f"{name}_float"] and loaded[f"{name}_double"]


def test_signatures_are_read_from_the_sources(tmp_path, monkeypatch):
    text = (
        "KERNEL(add)(Context* context, const Real* a,\n    uint8_t* y, Int count, bool relu) {\nKERNEL(one)(double x)"
    )
    (tmp_path / "some.cpp").write_text(text)
    monkeypatch.setattr(library, "SOURCES", tmp_path)
    read = signatures.__wrapped__
    arrays = Argument("Context", True, False), Argument("Real", True, True), Argument("uint8_t", True, False)
    numbers = Argument("Int", False, False), Argument("bool", False, False)
    assert read() == {"add": (*arrays, *numbers), "one": (Argument("double", False, False),)}
    (tmp_path / "some.cpp").write_text("KERNEL(add)(std::vector<Real> a) {")
    with pytest.raises(ValueError, match=r"some.cpp: cannot read the parameters of add: std::vector<Real> a"):
        read()


def test_wrong_arguments_are_refused():
    kernels, x = CpuKernels(np.dtype("float32")), np.ones(8, np.float32)
    y = np.zeros_like(x)
    kernels.add(x, x, y, 8, False)
    assert y.tolist() == [2] * 8
    wrong = [x.astype("f8"), x.astype("i4"), x.astype(">f4"), np.ones((8, 2), np.float32)[:, 0], x.tolist(), 8]
    for each in wrong:
        with pytest.raises((TypeError, library.ctypes.ArgumentError)):
            kernels.add(x, each, y, 8, False)
    for numbers in ((8.0, False), ("8", False), (None, False), (8,)):
        with pytest.raises((TypeError, library.ctypes.ArgumentError)):
            kernels.add(x, x, y, *numbers)
    assert y.tolist() == [2] * 8


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """build(flags) → the library of this CPU's family with further flags of the compiler."""
    folder, loaded = tmp_path_factory.mktemp("libraries"), {}
    _, family = library.open_library()

    def make(*more, by=None):
        compiler = by or next((each for each in compilers() if isinstance(each, Compiler)), None)
        if compiler is None:
            pytest.skip("there is no compiler: neither ziglang, $CXX, g++ nor clang++")
        out = folder / f"{len(loaded)}.so"
        if (compiler, more) not in loaded:
            compile_family(compiler, platform.machine(), family, out, more)
            loaded[compiler, more] = load_library(out)
        return loaded[compiler, more], family

    return make


def differing(monkeypatch, one, other) -> list[str]:
    """The calls whose results differ between two libraries."""
    lines = []
    for opened in (one, other):
        monkeypatch.setattr(library, "open_library", lambda opened=opened: opened)
        lines.append(list(digests(all_calls())))
    return [line for line, wanted in zip(*lines, strict=True) if line != wanted]


@X86
@pytest.mark.thorough
@pytest.mark.parametrize("width", [64, 32, 16])
def test_vectors_of_any_width_give_the_same_bits(build, monkeypatch, width):
    assert not differing(monkeypatch, build(f"-DVECTOR_BYTES={width}"), library.open_library())


@pytest.mark.thorough
def test_every_compiler_gives_the_same_bits(build, monkeypatch):
    current = library.open_library()
    for compiler in compilers():
        if isinstance(compiler, Compiler):
            assert not differing(monkeypatch, build(by=compiler), current), compiler.name


@pytest.mark.thorough
def test_the_bits_of_every_kernel_are_compared(monkeypatch):
    """But of images of bytes, which have a test of their own, and of functions that are arithmetic of other kernels."""
    reached, bind = set(), CpuKernels._bind

    def note(self, symbol, parameters, real):
        function = bind(self, symbol, parameters, real)
        return lambda *arguments: (reached.add(symbol.removesuffix(f"_{real}")), function(*arguments))[1]

    monkeypatch.setattr(CpuKernels, "_bind", note)
    for _ in digests(all_calls()):
        pass
    assert set(signatures()) - reached == {"resize_image", "exp", "log"}


def test_a_forked_process_computes_without_helpers():
    """They are threads of the first process."""
    program = (
        "import os, numpy as np\n"
        "from ringtrain.ops.cpu import CpuOps\n"
        "ops, x = CpuOps('float32', 2), np.ones(1 << 17, np.float32)\n"
        "ops.scale(x, 2.0)\n"
        "child = os.fork()\n"
        "ops.scale(x, 2.0)\n"
        "assert (x == 4).all()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
