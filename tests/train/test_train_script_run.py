"""The run folder of a script, from its steps, forward passes and scores. Nothing here needs PyTorch."""

import math
from pathlib import Path

import pytest

from ringtrain.config.exchange import ExchangeConfig
from ringtrain.errors import UsageError
from ringtrain.launch.python_script import ScriptCommand
from ringtrain.report.comparison.logs import read_run
from ringtrain.runs.summary import summarise
from ringtrain.storage.run_folder.outcome import read_outcome
from ringtrain.train.start import script_run
from ringtrain.train.start.script_run import ScriptRun, git_state
from ringtrain.transport.loopback import Loopback
from tests.runs import records
from tests.says import says

HELD = {"weights_bytes": 40, "gradient_bytes": 40, "state_bytes": 80}


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """begin() → the run of a script in tmp_path/run, which has sent 100 bytes for each call, and waited 0.5 s"""
    monkeypatch.setattr(script_run, "draw_curves", lambda folder, path: None)

    def start(**options):
        calls = iter(range(10**6))

        def traffic():
            call = next(calls)
            return 100 * call, 0.5 * call

        exchange = ExchangeConfig(sync="averaging", average_every=4)
        command = ScriptCommand("a/train.py", out=str(tmp_path / "run"), exchange=exchange, seed=3, **options)
        return ScriptRun(command, Loopback(), traffic, lambda: {"model": "Net", "parameters": 10})

    return start


def end(run, code=0):
    run.measure(HELD, None, None)
    run.ended(code)


def test_a_run_has_the_records_of_a_training(begin, tmp_path):
    run = begin()
    for step in range(3):
        run.forward(8)
        run.forward(8)  # of a second micro-batch
        run.step(lr=0.1)
        run.scores({"step": step, "loss": 3.0 - step})
    end(run)
    (start,) = records(tmp_path / "run", "start")
    assert [start[name] for name in ("model", "batch", "lr", "seed", "ranks")] == ["Net", 16, 0.1, 3, 1]
    assert start["data"] == "data of train.py" and start["command"].startswith("python -m ringtrain.torch")
    iterations = records(tmp_path / "run", "iteration")
    assert [(each["iteration"], each["loss"], each["examples"]) for each in iterations] == [
        (1, 3.0, 16), (2, 2.0, 16), (3, 1.0, 16),
    ]  # fmt: skip
    assert [each["exposed_s"] for each in iterations] == [0.5] * 3 and iterations[0]["accuracy"] is None
    (ranks,) = records(tmp_path / "run", "ranks")
    assert ranks["images"] == [48] and ranks["updates"] == [3] and ranks["bytes_sent"] == [400]
    (ended,) = records(tmp_path / "run", "end")
    assert ended["reason"] == "done" and ended["iterations"] == 3 and ended["images_per_s"] > 0
    read = read_run(tmp_path / "run", "a")
    assert [point.nbytes for point in read.train] == pytest.approx([400 / 3, 800 / 3, 400])
    summary, problem = summarise(tmp_path / "run", "a")
    assert problem is None and summary.value("iteration") == 3 and summary.value("average_every") == 4
    assert summary.value("outcome") == "done" and summary.value("epoch") is None
    with pytest.raises(UsageError, match=says("--out", "done")):
        begin()


def test_scores_belong_to_the_step_under_way_or_else_to_the_last_one(begin, tmp_path):
    run = begin()
    for loss in (2.0, 1.0):
        run.forward(4)
        run.scores({"loss": loss})  # between forward and step
        run.step()
        run.scores({"accuracy": loss / 4})
    run.scores({"test_accuracy": 0.75})
    end(run)
    iterations = records(tmp_path / "run", "iteration")
    assert [(each["loss"], each["accuracy"], each["lr"]) for each in iterations] == [
        (2.0, 0.5, None),
        (1.0, 0.25, None),
    ]
    (tested,) = records(tmp_path / "run", "evaluation")
    assert (tested["iteration"], tested["test_loss"], tested["test_accuracy"]) == (2, None, 0.75)
    assert summarise(tmp_path / "run", "a")[0].value("test_accuracy") == 0.75


def test_a_script_without_an_optimizer_of_pytorch_tells_its_steps(begin, tmp_path):
    run = begin()
    for step in (10, 20):
        run.scores({"step": step, "loss": 1.0})
    end(run)
    steps = records(tmp_path / "run", "iteration")
    assert [(each["iteration"], each["examples"]) for each in steps] == [(10, 1), (20, 1)]


def test_a_run_that_is_not_done_goes_on_in_its_folder(begin, tmp_path):
    run = begin()
    for step in (1, 2):
        run.step()
        run.scores({"step": step, "loss": math.nan})
    end(run, 75)
    assert read_outcome(tmp_path / "run").outcome == "interrupted"
    run = begin()
    run.step()
    run.scores({"step": 3, "loss": 1.0})
    end(run)
    read = read_run(tmp_path / "run", "a")
    assert [point.iteration for point in read.train] == [1, 2, 3] and read.outcome == "done"
    assert [start["resumed_at"] for start in records(tmp_path / "run", "start")] == [0, 2]


def test_the_error_of_a_script_is_in_its_folder(begin, tmp_path):
    run = begin()
    run.step()
    run.failed("ValueError", "rank 0 (a): ValueError: no more", 1)
    read, became = read_run(tmp_path / "run", "a"), read_outcome(tmp_path / "run")
    assert read.outcome == "failed" and read.failed["text"] == became.text == "rank 0 (a): ValueError: no more"
    assert became.iteration == 1 and became.exit_code == 1


def test_the_commit_of_a_folder():
    state = git_state(Path(__file__).parent)
    assert state is None or len(state.removesuffix("-dirty")) == 40
    assert git_state(Path("/proc")) is None
