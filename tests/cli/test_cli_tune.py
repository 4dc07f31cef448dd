"""ringtrain tune, as a user types it, in one process; tests/mpi has several."""

import re

import pytest

from ringtrain.allreduce.tuning_table import Table, Tuning, TuningRow
from ringtrain.cli.main import run
from tests.says import says

COMMAND = "tune"

NO_FILE = r"none\.json .*No such file"
MACHINE = {"cpu": "Some CPU", "cores": "2", "library": "Some MPI 1", "transport": "messages"}


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No tuning of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RINGTRAIN_TUNING", raising=False)


@pytest.fixture
def file(tmp_path):
    times = {"mpi": (1e-5, 4e-3), "ring": (4e-5, 1e-3), "hierarchical": (1e-9, 1e-9)}
    rows = [
        TuningRow(name, "float32", "sum", nbytes, time, True)
        for name, seconds in times.items()
        for nbytes, time in zip((1 << 10, 1 << 20), seconds, strict=True)
    ]
    tuning = Tuning(MACHINE)
    for ranks, nodes, name in ((2, 1, "1x2"), (4, 2, "2x2")):
        tuning = tuning.with_table(Table(ranks, nodes, "yesterday", tuple(rows), name=name))
    path = tmp_path / "t.json"
    path.write_text(tuning.text())
    return path


def test_one_process_explains_every_layout_of_a_file_also_by_the_environment(ringtrain, file, monkeypatch):
    code, out, err = ringtrain("--explain", "1K,1M", "--tuning", file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{file}: machine ") and lines[0].endswith("Some CPU; 2; Some MPI 1; messages")
    assert lines[1:3] == ["layout 1x2, measured yesterday", "float32 sum, 2 ranks on 1 node:"]
    assert " ".join(lines[3].split()) == "1 KiB mpi measured 10 µs; ring 40 µs"
    assert lines[4].strip() == "mpi 10 µs, ring 40 µs"
    assert re.search(says("mpi", "ring"), lines[7])
    assert lines[8] == "layout 2x2, measured yesterday" and lines[10].split()[2] == "hierarchical"
    monkeypatch.setenv("RINGTRAIN_TUNING", str(file))
    assert re.search(says("1x2"), ringtrain("--explain", "64K", "-d", "float64", "-o", "max")[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune",), says("exchange", "tune")),
        (("tune", "--algorithm", "rign"), says("--plugin", "'rign'", "did you mean 'ring'?")),
        (("tune", "-d", "float31"), says("type", "'float31'")),
        (("tune", "-o", "mean"), says("operation", "'mean'", "did you mean 'min'? known: max, min, sum")),
        (("tune", "-b", "lots"), says("'lots'")),
        (("tune", "-n", "2"), "Invalid value for '-n'"),
        (("tune", "--explain", "64K,lots"), says("'lots'")),
        (("tune", "--explain", "64K"), says("tuning.json", "No such file")),
        (("tune", "--explain", "64K", "--tuning", "none.json"), NO_FILE),
        (("tune", "--explain", "64K", "-d", "flaot32"), says("type", "'flaot32'")),
        (("bench-allreduce", "--algorithm", "auto", "--tuning", "none.json"), NO_FILE),
        (("bench-allreduce", "--algorithm", "ring", "--tuning", "t.json"), says("--tuning", "--algorithm", "t.json")),
        (("bench-allreduce", "--algorithm", "atuo"), says("--plugin", "'atuo'", "did you mean 'auto'?")),
        (("train", "--tuning", "none.json"), NO_FILE),
        (
            ("train", "--tuning", "t.json", "--algorithm", "ring"),
            says("--tuning t.json", "--algorithm auto", "--algorithm ring", "used", "uses"),
        ),
        (("train", "--algorithm", "rign"), says("--plugin", "'rign'", "did you mean 'ring'?")),
    ],
)
def test_mistakes(capfd, arguments, message, tmp_path, monkeypatch):
    """Of those, too, who go by a tuning."""
    monkeypatch.chdir(tmp_path)
    code = run(list(arguments))
    output = capfd.readouterr()
    assert code == 2 and re.search(message, output.err) and output.out == ""


def test_the_bench_has_a_row_of_the_choice(capfd):
    assert run(["bench-allreduce", "-b", "1K", "-e", "1K", "-n", "3", "-w", "0", "--algorithm", "auto,ring"]) == 0
    assert " auto:ring " in capfd.readouterr().out
