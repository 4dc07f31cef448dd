"""outcome.json: what is written is read, and what is no outcome is refused by name."""

import threading

import pytest

from ringtrain.cli.main import run
from ringtrain.errors import DivergedError, Interrupted, RingtrainError, StalledError, everywhere
from ringtrain.storage.run_folder import outcome
from ringtrain.storage.run_folder.outcome import RunOutcome
from ringtrain.train.start.recovery_state import OutcomeWriter
from tests.says import says

DIVERGED = RunOutcome("diverged", 3, 1500, 3000, 3, (1,), "the loss is nan\nand more")


def test_what_is_written_is_read_and_the_command_ends_with_its_code(tmp_path, capsys):
    assert run(["outcome", str(tmp_path)]) == 2
    assert says(tmp_path / "outcome.json", "No such file", "folder").matches(capsys.readouterr().err)
    outcome.write_outcome(tmp_path, DIVERGED)
    assert outcome.read_outcome(tmp_path) == DIVERGED
    assert run(["outcome", str(tmp_path)]) == 3
    line = "diverged: iteration 1,500 of 3,000, 3 ranks, 1 lost on the way, exit code 3: the loss is nan\n"
    assert capsys.readouterr().out == line
    outcome.write_outcome(tmp_path, RunOutcome("running", None, 0, 10, 1))  # it has ended without a word
    assert run(["outcome", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "running: iteration 0 of 10, 1 rank\n"


def ended(folder, error, writes=True) -> RunOutcome | None:
    ending = OutcomeWriter(folder, writes, 10, 4, (2,))
    ending.progress.iteration = 6
    ending.failed(error)
    return outcome.read_outcome(folder) if (folder / outcome.NAME).exists() else None


def test_errors_end_with_their_words_and_codes(tmp_path):
    # One of all ranks is written by the first, one of a single rank by that one.
    assert ended(tmp_path, everywhere(RingtrainError("of all")), writes=False) is None
    assert ended(tmp_path, RingtrainError("of one"), writes=False).text == "of one"
    assert ended(tmp_path / "gone", RingtrainError("first")) is None  # and hides no error
    assert ended(tmp_path, DivergedError("nan")) == RunOutcome("diverged", 3, 6, 10, 4, (2,), "nan")
    assert ended(tmp_path, everywhere(Interrupted("stopped"))).outcome == "interrupted"
    assert ended(tmp_path, KeyboardInterrupt()).exit_code == 130
    failed = RunOutcome("failed", 1, 6, 10, 4, (2,), "ZeroDivisionError: by 0")
    assert ended(tmp_path, ZeroDivisionError("by 0")) == failed


@pytest.mark.timing
def test_a_file_system_that_does_not_answer_does_not_keep_a_run_from_its_end(tmp_path, monkeypatch):
    answers, written = threading.Event(), []
    monkeypatch.setattr(outcome, "write_outcome", lambda folder, ending: written.append(answers.wait(60)))
    monkeypatch.setattr("ringtrain.train.start.recovery_state.WRITTEN_S", 0.01)
    assert ended(tmp_path, StalledError("no progress")) is None
    assert not written  # nobody has waited for that
    answers.set()
