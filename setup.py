"""Compiles the kernels of the CPU while ringtrain is installed, into the package, or into this folder if editable."""

import atexit
import importlib.util
import os
import platform
import shutil
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).parent
LIBRARIES = Path("ringtrain/ops/cpu/libraries")
# scripts/wheels sets it, for a wheel that any Linux of this machine takes.
WHEEL_MACHINE = os.environ.get("RINGTRAIN_WHEEL_MACHINE")
MACHINE = WHEEL_MACHINE or platform.machine()

spec = importlib.util.spec_from_file_location("compile", HERE / LIBRARIES.with_name("compile.py"))
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
# scripts/environment sets it: a checkout compiles the other families later.
OWN_FAMILY = os.environ.get("RINGTRAIN_KERNELS") == "own" and not os.environ.get("CXX")
FAMILIES = kernels.cpu_families()[:1] if OWN_FAMILY else []
COMPILED_HERE = not WHEEL_MACHINE and not kernels.lacking(HERE / LIBRARIES, MACHINE, FAMILIES)


class BuildWithKernels(build_py):
    def run(self):
        out = (HERE if self.editable_mode else Path(self.build_lib)) / LIBRARIES
        if not self.editable_mode:
            shutil.rmtree(out, ignore_errors=True)  # of an earlier installation
        if not COMPILED_HERE:
            compile_into(out)  # first: if it fails, its message is not below a thousand lines
        elif not self.editable_mode:
            out.mkdir(parents=True)
            for name in (kernels.BUILT, *map(kernels.file_name, kernels.read_built(HERE / LIBRARIES)["families"])):
                shutil.copy2(HERE / LIBRARIES / name, out / name)
        super().run()


def compile_into(folder: Path) -> None:
    try:
        available = kernels.checkout_compilers if OWN_FAMILY else kernels.compilers
        built = kernels.compile_all(folder, MACHINE, FAMILIES, available)
    except kernels.CompileError as error:
        raise SystemExit(f"\nringtrain was not installed: {error}\n") from None
    print("compiled", ", ".join(f"{family} by {compiler}" for family, compiler in built["families"].items()))
    for family, why in built["failed"].items():
        print(f"not compiled: {family}: {why}")


class Wheel(bdist_wheel):
    def get_tag(self):
        """Any Python 3 of the platform: nothing here is linked with Python."""
        *_, own = super().get_tag()
        return "py3", "none", f"manylinux_{kernels.GLIBC.replace('.', '_')}_{MACHINE}" if WHEEL_MACHINE else own


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True  # a wheel of this platform, not of every one


def compiler_wheel() -> list[str]:
    """The wheel that compiles the kernels, unless they are compiled, or the user names a compiler."""
    without = COMPILED_HERE or os.environ.get("CXX") or MACHINE not in kernels.FAMILIES
    without = without or (OWN_FAMILY and kernels.system_compiler())
    return [] if without else [kernels.ZIG]


def folders() -> dict:
    """Options that keep setuptools from writing into the sources, which may be read-only, or be installed twice at
    once."""
    elsewhere = tempfile.mkdtemp(prefix="ringtrain-build-")
    atexit.register(shutil.rmtree, elsewhere, ignore_errors=True)
    return {"build": {"build_base": elsewhere}, "egg_info": {"egg_base": elsewhere}}


setup(
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": Wheel},
    distclass=WithLibraries,
    options=folders(),
    setup_requires=compiler_wheel(),
)
