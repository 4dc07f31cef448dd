"""Tuning, and what goes by it, under real mpirun."""

import json
import re

import pytest

from ringtrain.allreduce.machine import cpu_model
from tests.says import says

pytestmark = pytest.mark.mpi

TINY = ("-b", "1K", "-e", "64K", "-f", "8", "-n", "3", "-w", "1", "--passes", "2")


@pytest.fixture
def ringtrain(mpirun, tmp_path):
    """ringtrain(ranks, arguments): in a home of its own."""

    def start(ranks, *arguments, **more):
        return mpirun(ranks, ["-m", "ringtrain", *map(str, arguments)], XDG_CONFIG_HOME=str(tmp_path), **more)

    return start


def test_tuning_from_measuring_to_training(ringtrain, tmp_path):
    path = tmp_path / "ringtrain" / "tuning.json"
    done = ringtrain(2, "tune", *TINY, "--algorithm", "mpi,ring")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tuning 2 ranks on 1 node (layout 1x2) of machine ")
    assert done.stdout.endswith(f"written to {path}\n") and "UCX" not in done.stderr
    first = json.loads(path.read_text())
    assert len(first["layouts"]["1x2"]["rows"]) == 6 and first["machine"]["transport"] == "messages"

    done = ringtrain(3, "tune", *TINY, "--algorithm", "ring,star")  # another layout of the same machine
    assert done.returncode == 0, done.stderr
    both = json.loads(path.read_text())
    assert set(both["layouts"]) == {"1x2", "1x3"} and both["layouts"]["1x2"] == first["layouts"]["1x2"]
    assert sorted(each.name for each in path.parent.iterdir()) == ["tuning.json"]

    out = tmp_path / "run"
    train = ("train", "--ops", "reference", "--iterations", "3", "--out", out)
    done = ringtrain(2, *train)
    assert done.returncode == 0, done.stderr
    assert "allreduce (auto)" in done.stdout and "note: auto: " in done.stdout
    done = ringtrain(4, *train[:-1], tmp_path / "other")
    layouts = {"layout": "1x4", "ranks": "4 ranks on 1 node", "known": "1x2, 1x3"}
    assert done.returncode == 0 and re.search(says("--tuning", *layouts.values()), done.stdout), done.stderr
    assert says("without", "tuning").lines(done.stdout) == 1


@pytest.mark.thorough
def test_a_tuning_of_another_machine_is_told_once_and_ends_the_run(ringtrain, tmp_path):
    path = tmp_path / "t.json"
    assert ringtrain(2, "tune", *TINY[:2], "-e", "1K", "--tuning", path, "--algorithm", "mpi").returncode == 0
    tuning = json.loads(path.read_text())
    tuning["machine"]["cpu"] = "another"
    path.write_text(json.dumps(tuning))
    cpu = says("cpu", "another", cpu_model())
    named = says(path)
    other = says("--tuning", "--fresh", named, cpu)
    for arguments in (("train",), ("tune",), ("bench-allreduce", "--algorithm", "auto")):
        done = ringtrain(2, *arguments, "--tuning", path)
        assert done.returncode == 2
        assert other.matches(done.stderr) and done.stderr.count("--fresh") == 1
        assert json.loads(path.read_text()) == tuning
    done = ringtrain(2, "bench-allreduce", "--algorithm", "auto", RINGTRAIN_TUNING=str(path))
    named = says(path, "RINGTRAIN_TUNING")
    assert done.returncode == 2 and says("--tuning", "--fresh", named, cpu).matches(done.stderr)
    done = ringtrain(2, "tune", *TINY[:2], "-e", "1K", "--tuning", path, "--algorithm", "mpi", "--fresh")
    assert done.returncode == 0 and json.loads(path.read_text())["machine"]["cpu"] != "another"


def test_places_that_cannot_be_written_are_told_before_anything_is_measured(ringtrain, tmp_path):
    done = ringtrain(2, "tune", "--tuning", tmp_path)
    assert done.returncode == 2 and "it is a folder" in done.stderr
