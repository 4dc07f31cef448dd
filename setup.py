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
ZIG = "ziglang>=0.13,<0.18"
# scripts/wheels sets it, for a wheel that any Linux of this machine takes.
WHEEL_MACHINE = os.environ.get("RINGTRAIN_WHEEL_MACHINE")
MACHINE = WHEEL_MACHINE or platform.machine()

spec = importlib.util.spec_from_file_location("compile", HERE / LIBRARIES.with_name("compile.py"))
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
COMPILED_HERE = not WHEEL_MACHINE and kernels.up_to_date(HERE / LIBRARIES, MACHINE)


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
        built = kernels.compile_all(folder, MACHINE)
    except kernels.CompileError as error:
        raise SystemExit(f"\nringtrain was not installed: {error}\n") from None
    print(f"compiled {', '.join(built['families'])} by {built['compiler']}")
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
    return [] if without else [ZIG]


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
