"""What is read of the loaded libraries."""

import re
from pathlib import Path

import pytest

from ringtrain.transport.cuda_aware.decision import NO, YES, Evidence
from tests.says import says

MAPS = """\
7f00-7f01 r--p 00000000 fe:00 123        /opt/venv/lib/python3.11/site-packages/mpi4py/MPI.mpich.so
7f01-7f02 r-xp 00001000 fe:00 124        {path}
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r--p 00000000 fe:00 125        /opt/ucx/lib/libucp.so.0.0.0
"""


@pytest.fixture
def libmpi():
    pytest.importorskip("mpi4py")
    try:
        from ringtrain.transport.mpi import libmpi
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no MPI library: {str(error).splitlines()[0]}")
    return libmpi


@pytest.mark.parametrize(
    "path",
    ["/opt/venv/lib/libmpi.so.40.40.8", "/my mpi/libmpi.so.12", "/usr/lib/libmpich.so.12", "/x/libmpi_cray.so.12"],
)
def test_the_loaded_mpi_is_found(libmpi, path):
    assert libmpi.loaded(libmpi.LIBMPI, MAPS.format(path=path)) == Path(path)
    assert libmpi.loaded(libmpi.LIBUCP, MAPS.format(path=path)) == Path("/opt/ucx/lib/libucp.so.0.0.0")
    assert libmpi.loaded(libmpi.LIBMPI, "") is None


def test_ucx(libmpi, tmp_path):
    path = tmp_path / "libucp.so.0"
    assert libmpi.ucx_evidence(None) == Evidence("ucx", NO, says("UCX", "loaded"))
    assert libmpi.ucx_evidence(path) == Evidence("ucx", NO, says(path))
    (tmp_path / "ucx").mkdir()
    (tmp_path / "ucx" / "libuct_cuda.so.0").touch()
    assert libmpi.ucx_evidence(path) == Evidence("ucx", YES, says(path))


def test_this_mpi(libmpi):
    """Whatever it is, it is found, and it can be asked."""
    names = [rung.name for rung in libmpi.mpi_evidence()]
    assert names == ["query", "ucx"]
    path = libmpi.loaded(libmpi.LIBMPI)
    assert path is not None and path.is_file()
    assert re.search(r"\b(yes|no)\b", libmpi.query().why)
    launcher = libmpi.launcher()
    assert launcher is None or launcher.name in ("mpirun", "mpiexec")
