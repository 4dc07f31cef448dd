"""``--early-stop``, ``--best-by`` and ``--min-lr``: which evaluations end a run, and how it is started again."""

from types import SimpleNamespace

import pytest

from ringtrain.config.record import make_config
from ringtrain.errors import ConfigError
from ringtrain.storage.checkpoint import store
from ringtrain.storage.run_folder.outcome import read_outcome
from ringtrain.train import evaluate
from ringtrain.train.assembly.recipe import EARLY_STOP, check_early_stop
from ringtrain.train.evaluate import Score
from ringtrain.transport.loopback import Loopback
from tests.runs import FC_NET, records, start
from tests.says import says

# (loss, accuracy): by loss the third is the best one, by accuracy the second.
SCORES = [(2.0, 0.2), (1.9, 0.6), (1.5, 0.5), (1.6, 0.6), (1.7, 0.5), (1.8, 0.5), (1.4, 0.9), (1.0, 0.95)]


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ringtrain.train.start.start.has_iterations", lambda log: False)  # curves take a second
    (tmp_path / "net.toml").write_text(FC_NET)

    def score(evaluator, *_):
        return Score(*scores.pop(0), 360)

    def run(evaluations=SCORES, ranks=1, **flags):
        """Its evaluations have these scores, one after another."""
        scores[:] = evaluations
        monkeypatch.setattr(evaluate.Evaluator, "score", score)
        flags = {"model": "net.toml", "data": "digits", "out": "run", "epochs": len(SCORES), **flags}
        start(Loopback(), None, flags)
        return records(tmp_path / "run")[-1]

    scores: list = []
    return run


@pytest.mark.parametrize(("by", "epochs", "best"), [("accuracy", 5, 2), ("loss", 6, 3)])
def test_a_run_ends_after_evaluations_without_a_better_one(train, tmp_path, by, epochs, best):
    """An equal one is no better one."""
    end = train(early_stop=3, best_by=by)
    assert (end["reason"], end["epochs"], end["iterations"]) == (EARLY_STOP, epochs, 12 * epochs)
    assert store.load_checkpoint(tmp_path / "run" / "checkpoints" / "best.h5").epoch == best
    value = SCORES[best - 1][by == "accuracy"]
    note = says("--early-stop", by, f"{value:.4f}", "3 evaluations")
    assert note in [record["text"] for record in records(tmp_path / "run", "note")]
    outcome = read_outcome("run")
    assert (outcome.outcome, outcome.exit_code, outcome.iteration) == ("done", 0, 12 * epochs)


def test_a_run_that_is_not_told_to_goes_to_its_end(train, capsys):
    """The screen marks the best ones."""
    assert train(best_by="loss")["reason"] == "done"
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ") and "/" in line]
    assert [number for number, line in enumerate(lines, 1) if " * " in line] == [1, 2, 3, 7, 8]


def test_a_resumed_run_keeps_the_count(train, tmp_path):
    train(SCORES[:4], epochs=4, early_stop=4)
    assert train(SCORES[4:], early_stop=4, resume="auto")["epochs"] == 6


def test_a_stopped_run_that_is_started_again_does_not_train(train, tmp_path, capsys):
    """With more patience it goes on; one that leaves its best checkpoint behind counts anew, in a folder of its own."""
    train(early_stop=3)
    before = (tmp_path / "run" / "log.jsonl").read_bytes()
    capsys.readouterr()
    train([], early_stop=3, resume="auto")
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == before
    assert says("done", "--early-stop 6 lengthens").matches(capsys.readouterr().out)
    end = train(SCORES[5:], early_stop=3, resume=str(tmp_path / "run"), out="other")
    assert (end, records(tmp_path / "other")[-1]["epochs"]) == (records(tmp_path / "run")[-1], 8)
    end = train(SCORES[5:], early_stop=5, resume="auto")
    assert (end["reason"], end["epochs"]) == ("done", 8)


def test_data_without_a_test_part_are_refused():
    config, data = make_config(early_stop=3), SimpleNamespace(test=None, name="photos")
    with pytest.raises(ConfigError, match=says("--early-stop", 3, "photos")):
        check_early_stop(config, data)
