"""Run folders of others: whatever is in the place of a file, a reader ends, takes little memory, and names it; one bad
folder is one line of a list."""

import contextlib
import errno
import json
import os
import resource
import socket
from pathlib import Path

import pytest

from ringtrain import errors
from ringtrain.cli import main
from ringtrain.errors import RingtrainError, UsageError
from ringtrain.report.comparison import logs
from ringtrain.report.comparison.logs import read_iterations, read_run
from ringtrain.report.page import read_reported
from ringtrain.report.sinks import is_log, kinds_at, truncate_log
from ringtrain.runs.summary import list_runs
from ringtrain.storage.run_folder.outcome import LARGEST_BYTES, read_outcome
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.checkpoints.resume import config_of
from tests.run_folders import make_run
from tests.says import says

HUGE = 3 << 30
MEMORY = 1 << 30  # more than this process has already


def sparse(path, head=b""):
    path.write_bytes(head)
    os.truncate(path, HUGE)


def end_of(path):
    """A valid beginning, and then nothing but zeros."""
    sparse(path, path.read_bytes())


def listen(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def deep(path):
    path.write_text("[" * 100_000)


# What stands in the place of a file; the file is there when it is called, or has been removed.
THINGS = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": listen,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "3 GiB": sparse,
    "a valid one that goes on for 3 GiB": end_of,
    "brackets": deep,
    "nothing in it": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00" * 99),
}
FILES = ["outcome.json", "log.jsonl", "config.toml", "metrics.json"]
COMMANDS = {
    "outcome": read_outcome,
    "runs": lambda folder: list_runs(folder.parent),
    "runs --log": read_iterations,
    "compare": lambda folder: read_run(folder, "bad"),
    "report": lambda folder: read_reported(folder, "bad"),
    "train --resume": lambda folder: config_of(RunFolder(folder)),
}


@pytest.fixture
def little_memory():
    """This process cannot grow by more than ``MEMORY``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def folder(tmp_path):
    make_run(tmp_path / "runs" / "good")
    bad = make_run(tmp_path / "runs" / "bad")
    metrics = {"checkpoint": "x", "split": "test", "iteration": 1, "classes": []}
    (bad / "metrics.json").write_text(json.dumps(metrics))
    return bad


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_ends_no_list_and_stops_no_reader(folder, name, thing, command):
    if thing != "a valid one that goes on for 3 GiB":
        (folder / name).unlink()
    THINGS[thing](folder / name)
    try:
        result = COMMANDS[command](folder)
    except RingtrainError as error:
        assert name in str(error) and "\n" not in str(error) and error.exit_code == 2
        assert command not in ("runs", "train --resume")
        return
    if command == "runs":
        runs, notes = result
        listed = {run.results["name"] for run in runs}
        assert "good" in listed and ("bad" in listed or any(note.startswith("bad") for note in notes)), notes
        assert len(notes) <= 1 and (notes or name != "config.toml" or thing == "nothing in it")
    if command == "report" and name == "metrics.json":
        assert any(name in line for line in result.left_out)


@pytest.mark.parametrize("name", FILES)
def test_a_link_to_a_good_file_is_not_followed(folder, name):
    """A reader tells nothing of files elsewhere that the user may read and the sender of the folder may not."""
    (folder / name).rename(folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)
    command = {"outcome.json": "outcome", "log.jsonl": "compare"}.get(name, "report")
    try:
        message = " ".join(COMMANDS[command](folder).left_out)
    except UsageError as error:
        message = str(error)
    assert says("link", "followed").matches(message) and name in message


def test_an_outcome_of_more_than_a_mebibyte_is_none(folder):
    (folder / "outcome.json").write_bytes(b" " * LARGEST_BYTES + b"{}")
    with pytest.raises(UsageError, match=f"{folder}/outcome.json .* bytes"):
        read_outcome(folder)


def test_a_log_of_more_bytes_than_a_whole_one_has_is_named(folder, monkeypatch):
    size = (folder / "log.jsonl").stat().st_size
    monkeypatch.setattr(logs, "LARGEST_BYTES", size)
    assert read_run(folder, "bad").train
    monkeypatch.setattr(logs, "LARGEST_BYTES", size - 1)
    with pytest.raises(UsageError) as end:
        read_run(folder, "bad")
    assert str(end.value) == says(folder / "log.jsonl", f"{size:,}", f"{size - 1:,}")


def test_a_line_without_an_end_is_passed_over(folder):
    """A disk has put zeros in the place of a record: those before and after it stay."""
    log = folder / "log.jsonl"
    first, *others = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first)
    os.truncate(log, len(first) + (1 << 25))
    with open(log, "ab") as file:
        file.write(b"\n" + b"".join(others))
    assert is_log(log) and kinds_at(log, 2) and len(read_run(folder, "bad").train) == 2
    size = log.stat().st_size
    truncate_log(log, 1)
    assert kinds_at(log, 1) and not kinds_at(log, 2) and size - 2000 < log.stat().st_size < size


# ── names that no file can have ───────────────────────────────────────────────────────────────────────────────────────
NAME = "n" * 300
CALLS = [
    ["data", "info", NAME], ["data", "check", NAME], ["data", "make", "digits", "-o", NAME],
    ["data", "make", NAME, "-o", "o.h5"], ["data", "info", f"{NAME}.h5:a,b"], ["data", "info", f"{NAME}.npz"],
    ["data", "info", f"{NAME}.npy,b.npy"], ["data", "info", f"{NAME}*.h5"], ["data", "info", "/".join([NAME] * 20)],
    ["export", NAME, "-o", "w.safetensors"], ["export", "none", "-o", f"{NAME}.safetensors"],
    ["runs", NAME], ["runs", "--csv", NAME], ["runs", "--json", NAME], ["runs", "--log", NAME],
    ["models", "show", NAME], ["models", "copy", "lenet", "-o", NAME], ["outcome", NAME], ["report", NAME],
    ["plan", NAME], ["slurm", NAME],
    ["schedule", "draw", "ring", "-n", "4", "-o", f"{NAME}.svg"],
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call).replace(NAME, "NAME")[:60])
def test_a_name_that_is_too_long_is_one_line(tmp_path, monkeypatch, capsys, call):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main.run(call) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ringtrain: ")]
    assert "Traceback" not in line and not os.listdir("runs")


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EACCES, errno.EIO])
def test_a_path_that_cannot_be_looked_up_is_named_and_a_disk_that_fails_keeps_its_traceback(number):
    error = OSError(number, os.strerror(number), "a/b")
    with pytest.raises((UsageError, OSError)) as end, errors.naming_paths():
        raise error
    if number == errno.EIO:
        assert end.value is error
    else:
        assert str(end.value) == says("a/b", os.strerror(number))
