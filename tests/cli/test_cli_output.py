"""Standard output that cannot be written: a line, an exit code, and no traceback. And which rank writes it."""

import os
import subprocess
import sys

import pytest

from ringtrain.errors import OutputClosed

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
    own = {**os.environ, **environment}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300, env=own)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_nothing_is_said_to_a_pipe_whose_reader_went_away(arguments):
    read, write = os.pipe()
    os.close(read)
    done = started(arguments, write)
    os.close(write)
    assert (done.returncode, done.stderr) == (OutputClosed.exit_code, "") == (128 + 13, "")


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_is_said_in_a_line(arguments):
    with open("/dev/full", "w") as full:
        done = started(arguments, full)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_closed_output_is_no_defect_either():
    command = f"{sys.executable} -m ringtrain --version >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["train", "-h"], ["models", "list"], [], ["data"]])
def test_rank_0_alone_does_what_needs_no_other_rank(arguments):
    first = started(arguments, subprocess.PIPE, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    second = started(arguments, subprocess.PIPE, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert (second.stdout, second.stderr, second.returncode) == ("", "", 0)
    assert first.stdout and not first.stderr


def test_its_errors_are_told_at_once():
    for rank, said in (("0", "ringtrain: no model or model file 'none'"), ("1", "")):
        world = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank, "RINGTRAIN_DEADLINE_S": "20"}
        done = started(["models", "show", "none"], subprocess.PIPE, **world)
        assert done.returncode == (2 if said else 0) and done.stderr.startswith(said)
