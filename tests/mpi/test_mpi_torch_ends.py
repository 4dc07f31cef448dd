"""What ends ranks of a script: with each strategy the rank is named, and all end soon after."""

import re
import socket

import pytest

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")

from tests.tiers import grid

pytestmark = pytest.mark.mpi

STRATEGIES = {
    "DDP's reducer": "",
    "PowerSGD": "--compress powersgd",
    "sharded": "--sync sharded",
    "server": "--sync server --overlap forward",
    "staleness": "--sync server --staleness 2",
    "averaging": "--sync averaging --average-every 8",
    "gossip": "--sync gossip",
    "delayed": "--sync delayed",
}
RANK = rf"rank 1 \({socket.gethostname()}\)"
NAMED = rf"no progress[\s\S]*({RANK} (has not|is in it, but|is the furthest behind)|behind is {RANK})"
ENDS = {  # how → seconds without progress, exit code, words
    "raised": (60, 1, rf"{RANK} failed:\n[\s\S]*ZeroDivisionError: of one rank"),
    "killed": (60, 137, r"rank 1 .*\s.*signal 9"),
    "hung": (4, 4, NAMED),  # in a loop
    "stopped": (4, 4, NAMED),
    "silent": (4, 4, NAMED),  # stopped at the end of the script
    "early": (4, 4, NAMED),  # at the end of the script, and the others are not
    "late": (60, 0, ""),
}


def is_daily(strategy, how):
    return (strategy, how) in (("sharded", "hung"), ("gossip", "silent"))


@pytest.mark.parametrize(("strategy", "how"), grid(is_daily, STRATEGIES, ENDS))
def test_a_rank_that_goes_wrong_is_named_and_all_end(mpirun, strategy, how):
    deadline_s, code, words = ENDS[how]
    command = ["-m", "ringtrain.torch", "--deadline-s", str(deadline_s), *STRATEGIES[strategy].split()]
    ranks = 2 if is_daily(strategy, how) else 3
    done = mpirun(ranks, [*command, "torch_ends.py", how], timeout=100)
    assert done.returncode == code and re.search(words, done.stderr), done.stderr
    assert code or done.stdout.count("all is well") == 3


def test_options_that_do_not_suit_the_model_end_with_2_without_a_traceback(mpirun):
    command = ["-m", "ringtrain.torch", "--sync", "averaging", "--fragments", "99", "torch_ends.py", "late"]
    done = mpirun(2, command, timeout=100)
    assert done.returncode == 2 and "give --fragments" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
