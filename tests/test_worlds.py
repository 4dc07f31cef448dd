"""What soak and load go by, without any ranks: trends, logs that are being written, what is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "scripts" / "benchmarks"
MIB = 1 << 20


@pytest.fixture(scope="module")
def worlds():
    """The package beside the programs."""
    sys.path.insert(0, str(FOLDER))
    import worlds.left
    import worlds.runs
    import worlds.steady

    yield worlds
    sys.path.remove(str(FOLDER))
    for name in [name for name in sys.modules if name.split(".")[0] == "worlds"]:
        del sys.modules[name]


def trend_of(worlds, bytes_per_s, files=(16,), threads=(4,)):
    samples = [
        worlds.world.Sample(float(t), 80 * MIB + t * bytes_per_s, MIB, files[t % len(files)], threads[t % len(threads)])
        for t in range(5, 105)
    ]
    return worlds.steady.trend(3, samples)


def test_what_grows_is_told_from_what_does_not(worlds):
    flat = trend_of(worlds, 1000, files=(16, 17), threads=(4, 5))
    assert not flat.grows and flat.growth == pytest.approx(49_000) and flat.slope == pytest.approx(1000)
    assert (flat.rank, flat.seconds, flat.files, flat.threads) == (3, 99.0, (16, 17), (4, 5))
    assert trend_of(worlds, MIB // 40).grows and not trend_of(worlds, MIB // 60).grows
    assert "1 MiB in the second half" in worlds.steady.BOUND
    samples = [worlds.world.Sample(float(t), 80 * MIB + min(t, 50) * MIB, MIB, 16, 4) for t in range(100)]
    assert worlds.steady.trend(3, samples).growth == pytest.approx(0, abs=1)  # it grew at first, and no more
    assert trend_of(worlds, 0, files=(16, 20)).grows and trend_of(worlds, 0, threads=(4, 8)).grows
    (heads, line) = worlds.steady.table([flat])
    assert len(heads) == len(line) and line.split()[:2] == ["3", "99"] and "3.43" in line and "16-17" in line


def test_a_log_that_is_being_written_is_read(worlds, tmp_path):
    runs = worlds.runs
    assert runs.records(tmp_path) == [] and not runs.reached(tmp_path, 1)
    lines = '{"event": "start"}\n{"event": "iteration", "iteration": 7, "loss": 0.5}\n{"event": "iter'
    (tmp_path / "log.jsonl").write_text(lines)
    assert runs.losses(tmp_path) == {7: 0.5} and len(runs.records(tmp_path)) == 2
    assert runs.reached(tmp_path, 7) and not runs.reached(tmp_path, 8)
    tmp_path.with_suffix(".txt").write_text("ringtrain: --lr is none\nprterun detected\n----\n")
    assert runs.last_words(tmp_path) == "ringtrain: --lr is none"


def test_what_is_left_behind_is_found_and_removed(worlds, tmp_path, monkeypatch):
    left = worlds.left
    monkeypatch.setattr(left, "PATIENCE_S", 0.0)
    monkeypatch.setattr(left, "SHARED_MEMORY", str(tmp_path / "shm"))
    for name in ("shm", "mpi"):
        (tmp_path / name).mkdir()
    (tmp_path / "mpi/before").touch()
    leftovers = left.Leftovers(tmp_path / "mpi")
    assert leftovers() == []
    (tmp_path / "shm/segment").touch()
    line = [sys.executable, "-c", "print(flush=True); import signal; signal.pause()"]
    environ = {**os.environ, worlds.world.TAG: str(os.getpid())}
    with subprocess.Popen(line, env=environ, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)  # it is there
        assert leftovers(spared={process.pid}) == [f"file {tmp_path}/shm/segment"]
        (told,) = leftovers()
        assert told.startswith(f"process {process.pid}: {sys.executable} -c ")
        assert process.wait(30) == -9
    assert leftovers() == []


def test_ancestors_end_with_the_first_process(worlds):
    found = worlds.world.ancestors(os.getpid())
    assert found[0] == os.getppid() and found[-1] in (0, 1)
    assert worlds.world.own_memory() > MIB
