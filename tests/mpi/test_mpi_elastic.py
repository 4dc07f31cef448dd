"""`--elastic`: ranks die at every kind of moment, and the others go on, from memory or from a checkpoint."""

import json
import random
import re
import socket
import sys

import pytest

from tests.mpi.programs.cut_collectives import KINDS
from tests.runs import FC_NET, records
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

TIMEOUT_S = 240
FIXED = ("--data", "digits", "--ops", "reference", "--dtype", "float64")
LONGEST = 60  # iterations of any run here
unbroken: dict = {}  # the log of one rank that nobody disturbs, by kind


@pytest.fixture(autouse=True, scope="module")
def one_rank(tmp_path_factory):
    from tests.mpi.conftest import run

    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "net.toml").write_text(FC_NET)
    flags = [*FIXED, "--model", folder / "net.toml", "--out", folder / "out", "--iterations", LONGEST]
    command = [sys.executable, "-m", "ringtrain", "train", *map(str, flags), "--evaluate-every", "4"]
    done = run(command, TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    unbroken.update(log(folder / "out"))
    yield
    unbroken.clear()


@pytest.fixture
def train(mpirun_command, tmp_path):
    """train(ranks, who dies where, flags) → (status, output, outcome, log by kind)."""
    from tests.mpi.conftest import run

    path = tmp_path / "net.toml"
    path.write_text(FC_NET)

    def start(ranks, spec, *flags, tolerant=("--with-ft", "ulfm"), **more):
        fixed = [*FIXED, "--model", path, "--out", tmp_path / "out"]
        command = mpirun_command(ranks, ["dies.py", spec, "train", *map(str, [*fixed, *flags])])
        done = run([command[0], *tolerant, *command[1:]], TIMEOUT_S, **more)
        return done.returncode, done.stdout + done.stderr, outcome(tmp_path / "out"), log(tmp_path / "out")

    return start


def outcome(folder):
    path = folder / "outcome.json"
    return json.loads(path.read_text()) if path.exists() else None


def log(folder):
    kinds = {}
    for record in records(folder) if (folder / "log.jsonl").exists() else ():
        kinds.setdefault(record["event"], []).append(record)
    return kinds


def check_whole(found, events, iterations, ranks, lost):
    """To the end, each iteration once, with the losses of one rank that nobody disturbs, and what that has learnt."""
    assert (found["outcome"], found["exit_code"], found["ranks"], found["lost"]) == ("done", 0, ranks, lost)
    assert [record["iteration"] for record in events["iteration"]] == list(range(1, iterations + 1))
    wanted = [record["loss"] for record in unbroken["iteration"][:iterations]]
    assert [record["loss"] for record in events["iteration"]] == pytest.approx(wanted, rel=1e-9)
    told = (*unbroken.get("evaluation", ()), *unbroken["epoch"])  # at an epoch's end its record has the score
    scores = {each["iteration"]: each["test_accuracy"] for each in told if each["test_accuracy"] is not None}
    (end,) = events["end"]
    assert (end["test_accuracy"], end["ranks"]) == (scores[iterations], ranks)
    epochs = [record["iteration"] for record in events["epoch"]]
    assert epochs == [number for number in range(1, iterations + 1) if number % 12 == 0]


def test_the_first_rank_dies_and_another_while_the_others_recover(train):
    status, told, found, events = train(4, "0=iteration:20,2=entering:1", "--iterations", 60, "--elastic")
    assert status == 0, told
    check_whole(found, events, 60, 2, [0, 1])  # of the world of three that was left, rank 1 was rank 2 before
    assert [(e["lost"], e["ranks"], e["source"], e["resumed_at"]) for e in events["lost"]] == [
        ([0, 1], 2, "memory", 19)
    ]
    lost = says("0, 1")
    words = {"lost": lost, "ranks": "2 ranks", "replaced": "", "iteration": 19, "source": says("from", "survivor")}
    assert re.search(says("lost", "took", *words.values()), told)


def test_two_die_at_once_in_an_evaluation_and_in_the_end(train):
    status, told, found, events = train(
        4, "0=evaluation:2,3=evaluation:2,1=ending:1", "--iterations", 36, "--elastic", "shrink"
    )
    assert status == 0, told
    check_whole(found, events, 36, 1, [0, 3, 0])
    assert {e["source"] for e in events["lost"]} == {"memory"}


def test_a_new_rank_comes_in_place_of_the_dead_one(train):
    status, told, found, events = train(3, "1=update:15", "--iterations", 40, "--elastic", "replace")
    assert status == 0, told
    check_whole(found, events, 40, 3, [1])
    (lost,) = events["lost"]
    assert (lost["lost"], lost["ranks"], lost["replaced"]) == ([1], 3, 1)
    assert lost["resumed_at"] in (14, 15)  # what it had sent may have sufficed for the others


def test_a_death_just_before_replacements_are_started_is_of_a_rank_to_be_replaced_too(train):
    flags = ["--iterations", 24, "--elastic", "replace"]
    status, told, found, events = train(3, "0=iteration:5,2=calming:1", *flags)
    assert status == 0, told
    check_whole(found, events, 24, 3, [0, 2])
    assert [(e["lost"], e["ranks"], e["replaced"]) for e in events["lost"]] == [([0, 2], 3, 2)]


def test_state_that_died_with_its_rank_comes_from_the_checkpoint(train):
    flags = ["--iterations", 36, "--sync", "sharded", "--checkpoint-every", 12, "--elastic"]
    status, told, found, events = train(3, "2=iteration:6,1=iteration:25", *flags)
    assert status == 0, told
    check_whole(found, events, 36, 1, [2, 1])
    assert [(e["source"], e["resumed_at"]) for e in events["lost"]] == [("anew", 0), ("checkpoint", 12)]
    assert "from the newest checkpoint, as no survivor holds the whole state" in told


@pytest.mark.parametrize("dead", [0, *thorough(2)])
def test_a_death_before_the_mpi_is_up_ends_the_others_and_is_told(train, tmp_path, dead):
    """The MPI's own start would wait for it for good."""
    status, told, found, _ = train(3, f"{dead}=starting:1", "--iterations", 12, "--elastic")
    assert status not in (0, 4) and found is None and not (tmp_path / "out").exists()
    told = told.replace("\0", "")
    assert says(f"rank {dead}", socket.gethostname(), "--elastic").matches(told)
    assert told.count("ringtrain: ") == 1 and "stacks of rank" not in told


@pytest.mark.parametrize("dead", [1, *thorough(0)])
def test_a_death_before_the_ranks_have_met_ends_the_other_and_is_told(train, tmp_path, dead):
    """The MPI is up: it returns an error, where it would else end the process with a status that says anything."""
    status, told, found, _ = train(2, f"{dead}=connecting:1", "--iterations", 12, "--elastic")
    assert status not in (0, 75) and found is None and not (tmp_path / "out").exists()
    assert re.search(f"ringtrain: rank {1 - dead}: {says('--elastic', 'died', 'had')}", told)
    assert told.count("ringtrain: ") == 1 and "Traceback" not in told and "ERRORS_ARE_FATAL" not in told


def test_deaths_before_the_first_iteration_before_all_is_written_and_while_ranks_part(train):
    """The first dies with its part of the log unwritten; one as all is done, and on the disk: another is not alone."""
    flags = ["--iterations", 24, "--elastic"]
    status, told, found, events = train(5, "1=opening:1,0=accounting:7,2=closing:1", *flags)
    assert status == 0, told
    check_whole(found, events, 24, 2, [1, 0, 0])  # by their numbers in the world that was left
    assert events["lost"][-1]["resumed_at"] == 24


def test_a_death_after_all_is_done_keeps_nobody(train):
    """An MPI that is ended in good order waits for the dead."""
    status, told, found, events = train(3, "1=meeting:1", "--iterations", 12, "--elastic")
    assert status == 0, told
    check_whole(found, events, 12, 3, [])


def test_survivors_that_are_told_to_stop_save_what_they_hold_first(train):
    _, told, found, events = train(3, "0=iteration:20,1toldentering:1", "--iterations", 60, "--elastic")
    assert (found["outcome"], found["exit_code"], found["iteration"]) == ("interrupted", 75, 20), told
    assert [record["iteration"] for record in events["checkpoint"]] == [12, 20]
    assert "stopped by SIGUSR1" in told and re.search(says("--out", "--resume", 20), told)


PLACES = {"opening": 1, "iteration": 60, "update": 60, "evaluation": 5, "saving": 5, "ending": 1}


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 50))])
def test_two_deaths_at_random_moments(train, seed):
    chance = random.Random(seed)
    ranks = chance.choice([3, 4])
    dead = chance.sample(range(ranks), 2)
    spec = []
    for place in chance.choices(list(PLACES), k=2):
        nth, verb = chance.randint(1, PLACES[place]), chance.choice(["=", "soon"])
        spec.append(f"{dead.pop()}{verb}{place}:{nth if verb == '=' else chance.randrange(300)}")
    status, told, found, events = train(ranks, ",".join(spec), "--iterations", 60, "--elastic")
    assert status == 0 and "Traceback" not in told, told
    check_whole(found, events, 60, found["ranks"], found["lost"])


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 10))])
@pytest.mark.parametrize("kinds", list(zip(*[iter(KINDS)] * 2, strict=True)))
def test_what_a_collective_returns_beside_a_death_is_right(mpirun_command, kinds, seed):
    """An MPI may return success to a survivor, and memory that was never written."""
    from tests.mpi.conftest import run

    order = kinds if seed % 2 else kinds[::-1]  # each dies among four ranks, and among three
    command = mpirun_command(4, ["cut_collectives.py", seed, *order])
    done = run([command[0], "--with-ft", "ulfm", *command[1:]], TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"(.+): \d+ right, (\d) ranks", done.stdout)) == sorted(
        [(order[0], "3")] * 3 + [(order[1], "2")] * 2
    )


def test_an_error_of_one_rank_ends_all_and_is_no_death(train):
    status, told, found, _ = train(3, "1failiteration:5", "--iterations", 2000, "--elastic")
    assert status != 0 and "rank 1 failed" in told and "ZeroDivisionError" in told
    assert (found["outcome"], found["exit_code"], found["lost"]) == ("failed", 1, [])
    assert "of one rank" in found["text"]


def test_a_stopped_rank_ends_all_when_its_time_is_up(train):
    status, told, found, _ = train(3, "1stopiteration:5", "--iterations", 2000, "--elastic", "--deadline-s", 3)
    assert status != 0 and "no progress for 3 s" in told
    assert (found["outcome"], found["exit_code"]) == ("stalled", 4)


def test_without_ulfm_it_is_refused_and_says_how_to_start(train, alone):
    status, told, found, _ = train(2, "", "--elastic", tolerant=())
    assert (status, found) == (2, None) and says("--with-ft").matches(told)
    done = alone(["-m", "ringtrain", "train", "--elastic"])
    assert done.returncode == 2 and says("--with-ft", "launcher", "dies").matches(done.stderr)


def test_without_elastic_a_death_ends_all_there_too(train):
    status, _, found, _ = train(2, "1=iteration:5", "--iterations", 2000)
    assert status != 0 and found["outcome"] == "failed"
    assert re.search(says("--resume", "--elastic"), found["text"])
