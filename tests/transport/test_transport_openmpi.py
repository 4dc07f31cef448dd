"""What keeps Open MPI from printing messages that say nothing to its user."""

import os
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
