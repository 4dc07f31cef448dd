"""Standard output that cannot be written: a line, an exit code, and no traceback. And which rank writes it."""

import os
import subprocess
import sys

import pytest

from ringtrain.cli.world import in_world
from ringtrain.errors import OutputClosed, TransportError
from tests.says import says

FULL = "ringtrain: standard output cannot be written: No space left on device\n"
COMMANDS = [
    ["--help"],
    ["--version"],
    ["train", "--help"],
    ["models", "list"],
    ["models", "show", "digits"],
    ["schedule", "show", "ring"],
    ["data", "info", "digits"],
    ["slurm"],
    ["doctor", "--quick", "--json"],
]


def started(arguments, stdout, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "ringtrain", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, env=variables)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_went_away_is_told_nothing_and_a_full_disk_is_a_line(arguments):
    read, write = os.pipe()
    os.close(read)
    done = started(arguments, write)
    os.close(write)
    assert (done.returncode, done.stderr) == (OutputClosed.exit_code, "") == (128 + 13, "")
    with open("/dev/full", "w") as full:
        done = started(arguments, full)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_closed_output_is_no_defect_and_errors_of_one_rank_are_told_at_once():
    command = f"{sys.executable} -m ringtrain --version >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=300)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or (done.returncode == 1 and done.stderr.startswith("ringtrain: standard output"))
    for rank, said in (("0", "ringtrain: no model or model file 'none'"), ("1", "")):
        world = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank, "RINGTRAIN_DEADLINE_S": "20"}
        done = started(["models", "show", "none"], subprocess.PIPE, **world)
        assert done.returncode == (2 if said else 0)
        assert done.stderr.startswith(said) if said else done.stderr == ""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "-h"], ["models", "list"], [], ["data"]])
def test_rank_0_alone_does_what_needs_no_other_rank(arguments):
    first = started(arguments, subprocess.PIPE, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    second = started(arguments, subprocess.PIPE, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert (second.stdout, second.stderr, second.returncode) == ("", "", 0)
    assert first.stdout and not first.stderr


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_rank_does_what_is_of_the_files_that_it_sees(rank, tmp_path):
    """As on nodes with a copy each. None waits for another: there is none here."""
    world = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank, "RINGTRAIN_DEADLINE_S": "20"}
    output = "ringtrain: rank 1: " if rank == "1" else "ringtrain: "
    (tmp_path / "damaged.h5").write_text("no data")
    done = started(["data", "info", "digits"], subprocess.PIPE, **world)
    assert (done.returncode, done.stdout[:15], done.stderr) == (0, "name     digits", "")
    for arguments, code, words in (
        (["data", "info", str(tmp_path / "damaged.h5")], 2, says(tmp_path / "damaged.h5")),
        (["outcome", str(tmp_path)], 2, "outcome.json cannot be read: No such file"),
        (["slurm", "-o", str(tmp_path / "damaged.h5")], 2, says("--output", "--force", tmp_path / "damaged.h5")),
        (["slurm", "--timme", "1"], 2, says("--timme", "No such option")),
    ):
        done = started(arguments, subprocess.PIPE, **world)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith(output) and done.stderr == says(words)


def test_a_rank_that_does_not_meet_the_others_tells_it_and_ends(monkeypatch, capfd):
    def connect(*arguments):
        raise TransportError("MPI failed while meeting the other ranks")

    monkeypatch.setattr("ringtrain.transport.world.connect", connect)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        in_world(lambda transport: 0)
    assert ended.value.code == 1
    assert capfd.readouterr().err == "ringtrain: rank 1: MPI failed while meeting the other ranks\n"
