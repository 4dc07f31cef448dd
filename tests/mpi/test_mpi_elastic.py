"""`--elastic`: ranks die at every kind of moment, and the others go on, from memory or from a checkpoint."""

import json
import random
import re
import sys

import pytest

from tests.mpi.conftest import run
from tests.mpi.programs.cut_collectives import KINDS
from tests.runs import FC_NET, records
from tests.says import says
from tests.tiers import thorough

pytestmark = pytest.mark.mpi

TIMEOUT_S = 240
FIXED = ("--data", "digits", "--ops", "reference", "--dtype", "float64")
LONGEST = 60  # iterations of any run here
ULFM = ("--with-ft", "ulfm")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The log, by kind, of one rank that nobody disturbs."""
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "net.toml").write_text(FC_NET)
    flags = [*FIXED, "--model", folder / "net.toml", "--out", folder / "out", "--iterations", LONGEST]
    command = [sys.executable, "-m", "ringtrain", "train", *map(str, flags), "--evaluate-every", "4"]
    done = run(command, TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return log(folder / "out")


@pytest.fixture
def train(mpirun_command, tmp_path):
    """train(ranks, who dies where, flags) → (status, output, outcome, log by kind)."""
    (tmp_path / "net.toml").write_text(FC_NET)

    def start(ranks, spec, *flags, tolerant=ULFM):
        out = tmp_path / "out"
        fixed = [*FIXED, "--model", tmp_path / "net.toml", "--out", out]
        command = mpirun_command(ranks, ["dies.py", spec, "train", *map(str, [*fixed, *flags])])
        done = run([command[0], *tolerant, *command[1:]], TIMEOUT_S)
        outcome = json.loads((out / "outcome.json").read_text()) if (out / "outcome.json").exists() else None
        return done.returncode, (done.stdout + done.stderr).replace("\0", ""), outcome, log(out)

    return start


def log(folder):
    kinds = {}
    for record in records(folder) if (folder / "log.jsonl").exists() else ():
        kinds.setdefault(record["event"], []).append(record)
    return kinds


@pytest.fixture
def survives(train, unbroken):
    """survives(ranks, who dies where, iterations, flags) → (output, outcome, events of deaths), of a run that goes on
    to the end, each iteration once, with the losses of one rank that nobody disturbs, and what that has learnt."""

    def start(ranks, spec, iterations, *flags, left=None, lost=None):
        status, output, outcome, events = train(ranks, spec, "--iterations", iterations, "--elastic", *flags)
        assert status == 0 and "Traceback" not in output, output
        left, lost = left or outcome["ranks"], outcome["lost"] if lost is None else lost
        assert (outcome["outcome"], outcome["exit_code"]) == ("done", 0), output
        assert (outcome["ranks"], outcome["lost"]) == (left, lost)
        assert [record["iteration"] for record in events["iteration"]] == list(range(1, iterations + 1))
        wanted = [record["loss"] for record in unbroken["iteration"][:iterations]]
        assert [record["loss"] for record in events["iteration"]] == pytest.approx(wanted, rel=1e-9)
        scored = (*unbroken.get("evaluation", ()), *unbroken["epoch"])  # at an epoch's end its record has the score
        scores = {each["iteration"]: each["test_accuracy"] for each in scored if each["test_accuracy"] is not None}
        (end,) = events["end"]
        assert (end["test_accuracy"], end["ranks"]) == (scores[iterations], left)
        epochs = [record["iteration"] for record in events["epoch"]]
        assert epochs == [number for number in range(1, iterations + 1) if number % 12 == 0]
        return output, events.get("lost", [])

    return start


# ── the others go on ──────────────────────────────────────────────────────────────────────────────────────────────────
ELSEWHERE, BOTH_ENDS = "a part of the state elsewhere", "before the first iteration, before all is written, at the end"
CASES = {  # ranks, who dies where, iterations, flags, ranks that are left, who is lost, by numbers in what was left
    "the first, and another meanwhile": (4, "0=iteration:20,2=entering:1", 60, (), 2, [0, 1]),
    "two at once, and in the end": (4, "0=evaluation:2,3=evaluation:2,1=ending:1", 36, ("shrink",), 1, [0, 3, 0]),
    "one that is replaced": (3, "1=update:15", 40, ("replace",), 3, [1]),
    "just before replacements": (3, "0=iteration:5,2=calming:1", 24, ("replace",), 3, [0, 2]),
    ELSEWHERE: (3, "2=iteration:6,1=iteration:25", 36, ("--sync", "sharded", "--checkpoint-every", 12), 1, [2, 1]),
    # The first dies with its part of the log unwritten; one as all is done, and on the disk: another is not alone.
    BOTH_ENDS: (5, "1=opening:1,0=accounting:7,2=closing:1", 24, (), 2, [1, 0, 0]),
    # The first dies behind the record of an epoch's end that its own world had made up for: it is made up for again.
    "twice after the same iteration": (4, "3=evaluation:3,0=saving:3", 40, (), 2, [3, 0]),
    "after all is done": (3, "1=meeting:1", 12, (), 3, []),  # an MPI that is ended in good order waits for the dead
}
DEATHS = {  # who is lost, ranks that are left, replaced ones, the source of the state, iterations before
    "the first, and another meanwhile": [([0, 1], 2, 0, "memory", {19})],
    "one that is replaced": [([1], 3, 1, "memory", {14, 15})],  # what it had sent may have sufficed for the others
    "just before replacements": [([0, 2], 3, 2, "memory", set(range(24)))],
    "twice after the same iteration": [([3], 3, 0, "memory", {36}), ([0], 2, 0, "memory", {36})],
    ELSEWHERE: [([2], 2, 0, "anew", {0}), ([1], 1, 0, "checkpoint", {12})],
}


@pytest.mark.parametrize("case", CASES)
def test_survivors_go_on_to_the_losses_of_an_unbroken_run(survives, case):
    ranks, spec, iterations, flags, left, lost = CASES[case]
    output, deaths = survives(ranks, spec, iterations, *flags, left=left, lost=lost)
    for death, wanted in zip(deaths, DEATHS.get(case, ()), strict=case in DEATHS):
        assert tuple(death[key] for key in ("lost", "ranks", "replaced", "source")) == wanted[:4]
        assert death["resumed_at"] in wanted[4]
    if case.startswith("the first"):
        assert re.search(says("lost", "took", says("0, 1"), "2 ranks", "", 19, says("from", "survivor")), output)
    elif case.startswith("two at once"):
        assert {death["source"] for death in deaths} == {"memory"}
    elif case == ELSEWHERE:
        assert "from the newest checkpoint, as no survivor holds the whole state" in output
    elif case == BOTH_ENDS:
        assert deaths[-1]["resumed_at"] == 24


# A rank that gets little of a busy machine has few iterations of its own: the places are those that it comes to anyway.
@pytest.mark.parametrize(
    ("victim", "place", "source"), [(2, "iteration:4", "memory"), *thorough((0, "saving:2", "checkpoint"))]
)
def test_a_rank_that_dies_under_a_quorum_is_replaced(train, victim, place, source):
    """Ranks take parts as they come: the run has each iteration once, and no fixed losses."""
    flags = ("--sync", "averaging", "--quorum", 2, "--average-every", 2, "--elastic", "replace")
    status, output, outcome, events = train(3, f"{victim}={place}", "--iterations", 36, *flags)
    assert status == 0 and "Traceback" not in output, output
    assert (outcome["outcome"], outcome["ranks"], outcome["lost"]) == ("done", 3, [victim])
    assert [record["iteration"] for record in events["iteration"]] == list(range(1, 37))
    (death,) = events["lost"]
    assert (death["replaced"], death["source"]) == (1, source) and events["end"][0]["test_accuracy"] > 0.5


PLACES = {"opening": 1, "iteration": 60, "update": 60, "evaluation": 5, "saving": 5, "ending": 1}


# By a real clock: where two ranks die within one moment, Open MPI's launcher may end the others too, with status 0.
@pytest.mark.parametrize("seed", thorough(*range(50)))
def test_two_deaths_at_random_moments(survives, seed):
    chance = random.Random(seed)
    ranks = chance.choice([3, 4])
    dead = chance.sample(range(ranks), 2)
    spec = []
    for place in chance.choices(list(PLACES), k=2):
        nth, verb = chance.randint(1, PLACES[place]), chance.choice(["=", "soon"])
        spec.append(f"{dead.pop()}{verb}{place}:{nth if verb == '=' else chance.randrange(300)}")
    survives(ranks, ",".join(spec), 60)


@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 10))])
@pytest.mark.parametrize("kinds", list(zip(*[iter(KINDS)] * 2, strict=True)))
def test_what_a_collective_returns_beside_a_death_is_right(mpirun_command, kinds, seed):
    """An MPI may return success to a survivor, and memory that was never written."""
    order = kinds if seed % 2 else kinds[::-1]  # each dies among four ranks, and among three
    command = mpirun_command(4, ["cut_collectives.py", seed, *order])
    done = run([command[0], *ULFM, *command[1:]], TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    right = [(order[0], "3")] * 3 + [(order[1], "2")] * 2
    assert sorted(re.findall(r"(.+): \d+ right, (\d) ranks", done.stdout)) == sorted(right)


# ── the run ends ──────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("rank", [1, *thorough(0)])
def test_a_death_before_the_ranks_have_met_ends_the_other_and_is_told(train, tmp_path, rank):
    """The MPI returns an error then, where it would else end the process with a status that says anything."""
    status, output, outcome, _ = train(2, f"{rank}=connecting:1", "--iterations", 12, "--elastic")
    assert status not in (0, 75) and outcome is None and not (tmp_path / "out").exists()
    assert output.count("ringtrain: ") == 1
    assert re.search(f"ringtrain: rank {1 - rank}: {says('--elastic', 'died', 'had')}", output)
    assert "Traceback" not in output and "ERRORS_ARE_FATAL" not in output


def test_survivors_that_are_told_to_stop_save_what_they_hold_first(train):
    _, output, outcome, events = train(3, "0=iteration:20,1toldentering:1", "--iterations", 60, "--elastic")
    assert (outcome["outcome"], outcome["exit_code"], outcome["iteration"]) == ("interrupted", 75, 20), output
    assert [record["iteration"] for record in events["checkpoint"]] == [12, 20]
    assert "stopped by SIGUSR1" in output and re.search(says("--out", "--resume", 20), output)


@pytest.mark.parametrize(
    ("ranks", "spec", "flags", "ending", "words", "text"),
    [  # an error is no death, and a stopped rank is none
        (3, "1failiteration:5", ["--elastic"], ("failed", 1), ["rank 1 failed", "ZeroDivisionError"], "of one rank"),
        (3, "1stopiteration:5", ["--elastic", "--deadline-s", 3], ("stalled", 4), ["no progress for 3 s"], "3 s"),
        (2, "1=iteration:5", [], ("failed", 1), [], says("--resume", "--elastic")),
    ],
)
def test_what_is_no_death_or_without_elastic_ends_all(train, ranks, spec, flags, ending, words, text):
    status, output, outcome, _ = train(ranks, spec, "--iterations", 2000, *flags)
    assert status != 0 and all(word in output for word in words), output
    assert (outcome["outcome"], outcome["exit_code"]) == ending and not outcome["lost"]
    assert says(text).matches(outcome["text"])


def test_without_ulfm_it_is_refused_and_says_how_to_start(train, alone):
    status, output, outcome, _ = train(2, "", "--elastic", tolerant=())
    assert (status, outcome) == (2, None) and says("--with-ft").matches(output)
    done = alone(["-m", "ringtrain", "train", "--elastic"])
    assert done.returncode == 2 and says("--with-ft", "launcher", "dies").matches(done.stderr)
