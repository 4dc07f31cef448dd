"""What `scripts/bench faults` goes by, without any ranks: where a rank was when it died, and what must be so then."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringtrain.checkpoint import outcome

FOLDER = Path(__file__).parents[1] / "scripts" / "benchmarks"
LOSSES = {1: 2.0, 2: 1.5, 3: 1.25}


@pytest.fixture(scope="module")
def faults():
    sys.path.insert(0, str(FOLDER))
    import faults as program
    import faults_run

    yield SimpleNamespace(run=faults_run, program=program)
    sys.path.remove(str(FOLDER))
    for name in [name for name in sys.modules if name.split(".")[0] in ("worlds", "faults", "faults_run")]:
        del sys.modules[name]


def write(out, losses, *between, after=2, lost=(1,), ranks=3, done=True):
    """A run's log, with records after an iteration, and its outcome."""
    told = []
    for number, loss in losses.items():
        told += [{"event": "iteration", "iteration": number, "loss": loss}]
        told += between if number == after else ()
    told.append({"event": "end", "test_accuracy": 0.875})
    (out / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    word, code = ("done", 0) if done else ("running", None)
    outcome.write(out, outcome.RunOutcome(word, code, len(losses), len(losses), ranks, lost))


LOST = {"event": "lost", "source": "memory", "seconds": 0.5}


def checked(faults, out):
    run = faults.run.Killed(1, faults.run.Moment(0.0, 2), phase=faults.run.TRAINING)
    unbroken = faults.run.Unbroken(3, 1.0, 0.875, True, LOSSES)
    faults.run.check_went_on(SimpleNamespace(ranks=4, replace=False), out, run, unbroken)
    return run


def test_a_run_that_is_the_unbroken_one_but_for_rounding_passes(faults, tmp_path):
    write(tmp_path, {**LOSSES, 3: 1.25 * (1 + 1e-12)}, LOST)
    run = checked(faults, tmp_path)
    assert run.wrong == [] and run.apart == pytest.approx(1e-12, rel=1e-3)
    assert (run.source, run.own_s) == ("memory", 0.5) and faults.run.has_gone_on(tmp_path)


@pytest.mark.parametrize(
    ("losses", "between", "more", "wrong"),
    [
        ({**LOSSES, 3: 1.25 + 1e-8}, (LOST,), {}, "its losses are 8.0e-09 from those of the unbroken run"),
        ({**LOSSES, 3: None}, (LOST,), {}, "its losses are inf from those of the unbroken run"),
        ({1: 2.0, 2: 1.5}, (LOST,), {}, "its log does not have every iteration once"),
        (LOSSES, (), {"lost": ()}, "done: iteration 3 of 3, 3 ranks, exit code 0"),
        (LOSSES, (LOST, LOST), {"lost": (1, 1)}, "done: iteration 3 of 3, 3 ranks, 2 lost on the way, exit code 0"),
        (LOSSES, (LOST,), {"ranks": 4}, "done: iteration 3 of 3, 4 ranks, 1 lost on the way, exit code 0"),
    ],
)
def test_what_is_wrong_is_said(faults, tmp_path, losses, between, more, wrong):
    write(tmp_path, losses, *between, **more)
    assert checked(faults, tmp_path).wrong == [wrong]


def test_where_a_rank_is_is_seen_from_outside(faults, tmp_path):
    run = faults.run
    assert run.phase_of(tmp_path, None) == run.STARTING
    write(tmp_path, {}, done=False)
    assert run.phase_of(tmp_path, None) == run.PREPARING and not run.has_gone_on(tmp_path)
    write(tmp_path, LOSSES, done=False)
    assert run.phase_of(tmp_path, None) == run.TRAINING and not run.has_gone_on(tmp_path)
    write(tmp_path, LOSSES)
    assert run.phase_of(tmp_path, None) == run.OVER


@pytest.mark.parametrize("done", [True, False])
def test_a_run_that_is_gone_before_its_kill_must_be_done(faults, tmp_path, monkeypatch, done):
    run = faults.run
    runs = run.Runs(SimpleNamespace(elastic=False, replace=False), tmp_path)
    monkeypatch.setattr(runs, "_start", lambda out: None)
    monkeypatch.setattr(runs, "_judge", lambda *_: None)
    monkeypatch.setattr(run, "await_moment", lambda *_: None)
    monkeypatch.setattr(run, "watch", lambda *_: None)
    (tmp_path / "007").mkdir()
    write(tmp_path / "007", LOSSES, done=done)
    killed = runs.killed(7, 1, run.Moment(0.0, 2), None)
    assert (killed.phase, killed.wrong) == (run.OVER, [] if done else ["it ended by itself, before the kill"])


def test_kills_come_from_the_launch_on(faults):
    draw, unbroken = random.Random(0), faults.run.Unbroken(100, 4.0, 0.9, True, {})
    moments = [faults.run.draw_moment(draw, unbroken) for _ in range(1000)]
    early = [moment.seconds for moment in moments if moment.iteration is None]
    assert 250 < len(early) < 350 and min(early) < 0.1 and max(early) > 3.9
    assert {moment.iteration for moment in moments} == {None, *range(100)}


def test_the_table_counts_runs_by_where_they_were_killed(faults):
    run = faults.run
    killed = [
        run.Killed(0, run.Moment(0.5), run.STARTING, "ended", 1, 2.0),
        run.Killed(1, run.Moment(0.0, 7), run.TRAINING, "went on", 0, 0.75, 0.5, "memory", 1e-15),
        run.Killed(1, run.Moment(0.0, 9), run.TRAINING, "hung", wrong=["it hung for 180 s, and was ended"]),
    ]
    told = faults.program.table(killed, None).splitlines()
    found = dict(line.split("  ", 1) for line in told)
    assert found["killed before it loads the MPI"].split() == ["1:", "ended", "1"]
    assert found["killed while it trains"].split() == ["2:", "hung", "1,", "went", "on", "1;", "1", "WRONG"]
    assert found["hung"].strip() == "1" and "1.0e-15 of 1 runs" in told[-1]
    assert "median 0.75, most 0.75 of 1" in faults.program.table(killed, None)
    given = SimpleNamespace(elastic=True, replace=False)
    assert faults.program.row(given, killed) == (
        "| `--elastic` | 3 | ended 1, hung 1, went on 1 | ended: 2.00, 2.00; went on: 0.75, 0.75 |"
    )
