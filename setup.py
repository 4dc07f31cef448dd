"""Compiles the kernels of the CPU while ringtrain is installed, into the package, or into this folder if editable."""

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).parent
PACKAGE = Path("ringtrain/ops/cpu")
# A wheel for another machine: scripts/wheels sets it.
MACHINE = os.environ.get("RINGTRAIN_WHEEL_MACHINE") or platform.machine()

spec = importlib.util.spec_from_file_location("compile", HERE / PACKAGE / "compile.py")
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)


class BuildWithKernels(build_py):
    def run(self):
        super().run()
        here, out = HERE / PACKAGE / "libraries", Path(self.build_lib) / PACKAGE / "libraries"
        if not kernels.up_to_date(here, MACHINE):
            try:
                kernels.compile_all(here, MACHINE)
            except kernels.CompileError as error:
                raise SystemExit(f"ringtrain: {error}") from None
        if not self.editable_mode:
            shutil.copytree(here, out, dirs_exist_ok=True)


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True  # a wheel of this platform, not of every one


def compiler_wheel() -> list[str]:
    """The wheel that compiles the kernels, unless they are compiled, or the user names a compiler."""
    there = kernels.up_to_date(HERE / PACKAGE / "libraries", MACHINE) or os.environ.get("CXX")
    return [] if there else ["ziglang>=0.13,<0.18"]


setup(cmdclass={"build_py": BuildWithKernels}, distclass=WithLibraries, setup_requires=compiler_wheel())
