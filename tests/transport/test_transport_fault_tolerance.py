"""What the environment says of deaths, and who is the launcher."""

import os

import pytest

from ringtrain.transport import fault_tolerance
from ringtrain.transport.fault_tolerance import (
    LET_OUT_S,
    _unread,
    find_launcher,
    is_fault_tolerant,
    why_not_fault_tolerant,
)
from tests.says import says

FT = {"OMPI_MCA_mpi_ft_enable": "1"}


def test_tolerance_is_what_the_launcher_has_enabled_and_each_reason_says_what_to_do():
    environs = {}, FT, {"OMPI_MCA_mpi_ft_enable": "0"}
    assert [is_fault_tolerant(environ) for environ in environs] == [False, True, False]
    assert why_not_fault_tolerant(FT, "Open MPI v5.0.11") == ""
    assert why_not_fault_tolerant({}, "Open MPI v5.0.11") == says("--with-ft")
    assert why_not_fault_tolerant(FT, "MPICH Version: 4.3") == says("MPICH Version: 4.3", "--with-ft")
    assert why_not_fault_tolerant(FT | {"OMPI_MCA_pml": "ucx"}, "Open MPI v5.0.11") == says("--mca", "ucx")
    assert why_not_fault_tolerant(FT | {"OMPI_MCA_pml": "ob1"}, "Open MPI v5.0.11") == ""


def test_a_launcher_is_found_among_the_processes_above(monkeypatch):
    name, parent = fault_tolerance._process(os.getpid())
    assert name and parent == os.getppid() and fault_tolerance._process(1 << 30) == ("", 0)
    family = {7: ("python", 6), 6: ("bash", 5), 5: ("prted", 4), 4: ("prterun", 1)}
    monkeypatch.setattr("ringtrain.transport.fault_tolerance._process", lambda number: family.get(number, ("", 0)))
    assert find_launcher(7) == 5
    assert find_launcher(99) is None


# ── what a launcher has still to read ─────────────────────────────────────────────────────────────────────────────────
def test_what_nobody_has_read_yet_is_counted_in_pipes_alone(tmp_path):
    reads, writes = os.pipe()
    os.write(writes, b"12345")
    assert _unread(writes) == 5
    os.read(reads, 5)
    assert _unread(writes) == 0
    os.close(reads)
    os.close(writes)
    assert _unread(writes) == 0
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        file.write(b"12345")
        assert _unread(file.fileno()) == 0


@pytest.mark.parametrize(("left", "slept_s"), [([0, 0], 0), ([3, 0, 3, 0, 0, 0], 2e-3), ([0, 9] * 9999, LET_OUT_S)])
def test_an_end_waits_until_all_is_read_but_not_for_ever(monkeypatch, left, slept_s):
    now, said = [50.0], iter(left)
    monkeypatch.setattr(fault_tolerance, "_unread", lambda descriptor: next(said))
    monkeypatch.setattr(fault_tolerance.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fault_tolerance.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    fault_tolerance.wait_until_read()
    assert now[0] - 50 == pytest.approx(slept_s, abs=1e-3)
