"""A process that hangs says where, and ends with 4; one that is asked shows its stacks."""

import json
import re
import signal
import socket
import subprocess

import pytest

from tests.mpi.conftest import PATIENCE_S, environment, in_python
from tests.says import says

pytestmark = [pytest.mark.mpi, pytest.mark.timing]

HOST = socket.gethostname()
TRAIN = ["train", "--ops", "reference", "--iterations", "12"]


def test_a_library_that_keeps_the_interpreter_is_ended_without_it(alone):
    done = alone(["hangs.py", "starting", "0", *TRAIN], RINGTRAIN_DEADLINE_S="3")
    assert done.returncode == 4, done.stderr
    assert "in keep_the_interpreter" in done.stderr  # the stacks, before
    stage = "starting the MPI and finding the other ranks"
    assert done.stderr.splitlines()[-1] == says("ringtrain: ", 0, HOST, 3, stage)


def test_ranks_show_their_stacks_on_request_and_the_stuck_one_when_it_is_told(mpirun_process, tmp_path):
    """Rank 1 is stuck in a call of C; rank 0 waits for it within the MPI."""
    flags = ["--algorithm", "mpi", "--deadline-s", "8", "--out", str(tmp_path / "o")]
    process = mpirun_process(2, ["hangs.py", "asking", "1", *TRAIN, *flags])
    assert any(line.startswith("iteration 1/") for line in iter(process.stdout))
    process.send_signal(signal.SIGUSR2)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, rest
    rest = rest.replace("\0", "")
    for rank, shown in ((0, 1), (1, 2)):  # rank 1 again at the end
        assert says(f"stacks of rank {rank}", HOST).lines(rest) == shown
    assert "in give_it_away" in rest
    (line,) = re.findall("ringtrain: rank .*", rest)  # a line of another rank's may have begun before it
    assert says("8", "collective ", f"rank 1 ({HOST})").matches(line)
    assert "conv1.weight to fc2.bias" in rest


def test_a_run_that_shows_its_stacks_goes_on_until_a_file_system_does_not_answer(tmp_path):
    flags = [*TRAIN, "--out", str(tmp_path / "o"), "--deadline-s", "6"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    with subprocess.Popen(in_python(["hangs.py", "saving", "0", *flags]), **pipes) as process:
        assert any(line.startswith("iteration 1/") for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGUSR2)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 4, errors
    *stacks, line = errors.splitlines()
    assert says(0, HOST, process.pid).matches(stacks[0])
    assert errors.count("stacks of rank 0") == 2 and "in give_it_away" in errors  # on request, and at the end
    path = tmp_path / "o" / "checkpoints" / "iteration-00000012.h5"
    assert json.loads((tmp_path / "o" / "outcome.json").read_text())["outcome"] == "stalled"
    hangs = says("--deadline-s", f"writing checkpoint {path}", 0, HOST)
    assert re.match(says(0, "ringtrain", "rank") + hangs, line)


@pytest.mark.thorough
def test_a_bit_that_changed_on_one_rank_ends_all(mpirun, tmp_path):
    flags = ["--check-replicas", "4", "--out", str(tmp_path / "o")]
    done = mpirun(3, ["hangs.py", "flipping", "1", *TRAIN, *flags])
    assert done.returncode == 3, done.stderr
    differing = says(f"rank 1 ({HOST})", f"ranks 0, 2 ({HOST})")
    words = says("--resume", 4, "after", "iteration", differing, "weights", "'conv1.weight'", 5)
    assert done.stderr.count("ringtrain: ") == 1 and re.search(f"ringtrain: {words}", done.stderr)
