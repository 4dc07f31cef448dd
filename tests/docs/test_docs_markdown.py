"""Commands are read from a document, and a transcript that differs from what a program says is seen."""

import pytest

from tests.docs.markdown import anew, differences, steps
from tests.docs.playing import Plan, Stage, play

TEXT = """# Title

```
first            # says so
second --flag x

```

```toml
# a.toml
key = 1
```

```
$ train \\
    --out a
epoch 1/2  0.5
done in 0:03
$ look
```
"""
SAID = ["ringtrain 0.2.0", "iteration 1/69, epoch 1/3: loss 2.7", "iteration 40/69, epoch 2/3: loss 1", "done in 0:12"]


def test_commands_and_what_they_print():
    assert [(step.command, step.shown, step.line, step.file) for step in steps(TEXT)] == [
        ("first", (), 4, ""),
        ("second --flag x", (), 5, ""),
        ("# a.toml\nkey = 1\n", (), 10, "a.toml"),
        ("train --out a", ("epoch 1/2  0.5", "done in 0:03"), 17, ""),
        ("look", (), 20, ""),
    ]


@pytest.mark.parametrize(
    ("shown", "difference"),
    [
        (["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3", "done in 0:03"], ""),  # but for figures
        (["ringtrain 0.1.0", "..."], ""),
        (["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3", "finished in 0:03"], "-finished in 0:0"),
        (["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3"], "+done in 0:0"),
        (["ringtrain 0.1.0", "done in 0:03"], "+iteration 0/0, epoch 0/0: loss 0"),
        (["...", "ringtrain 0.1.0"], "-..."),
        (["iteration 1/9, epoch 1/3: loss 3", "...", "note: all is well", "..."], "-note: all is well"),
    ],
)
def test_a_difference_is_told(shown, difference):
    assert difference in differences(shown, SAID) and bool(difference) == bool(differences(shown, SAID))


def test_a_transcript_is_written_anew():
    assert anew(["old", "lines"], SAID) == [SAID[0], SAID[1], SAID[3]]
    assert anew(["...", "done: in 0:01", "..."], SAID) == ["...", "done in 0:12", "..."]


@pytest.mark.parametrize(
    ("text", "plan", "outcome"),
    [
        ("$ echo 1 mile\n2 mile", Plan(), ""),
        ("$ echo 1 mile\n2 miles", Plan(), "+0 mile"),
        ("exit 3", Plan(), "d.md, line 2: $ exit 3\nended with 3"),
        ("$ echo yes\nyes", Plan(more={"echo yes": "no"}), "writes them anew"),
        ("$ exit 3\nno", Plan(unlike={"exit 3": "why"}), "ended with 3"),
        ("cat made", Plan(before=("exit 3",)), "before d.md: $ exit 3"),
    ],
)
def test_a_command_that_fails_or_prints_something_else_fails_the_document(tmp_path, monkeypatch, text, plan, outcome):
    monkeypatch.setattr("tests.docs.playing.ROOT", tmp_path)
    document, problem = tmp_path / "d.md", ""
    document.write_text(f"```\n{text}\n```\n")
    try:
        play(document, Stage(tmp_path), plan)
    except AssertionError as error:
        problem = str(error)
    assert outcome in problem and bool(outcome) == bool(problem)
