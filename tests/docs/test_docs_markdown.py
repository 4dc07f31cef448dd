"""How commands and transcripts are read from a document, and that a transcript that differs is seen."""

import pytest

from tests.docs.markdown import anew, blocks, differences, masked, steps
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
AS_WRITTEN = Plan()
SAID = ["ringtrain 0.2.0", "iteration 1/69, epoch 1/3: loss 2.7", "iteration 40/69, epoch 2/3: loss 1", "done in 0:12"]


def test_commands_and_what_they_print():
    parsed = steps(TEXT)
    assert [(step.command, step.shown, step.line, step.file) for step in parsed] == [
        ("first", (), 4, ""),
        ("second --flag x", (), 5, ""),
        ("# a.toml\nkey = 1\n", (), 10, "a.toml"),
        ("train --out a", ("epoch 1/2  0.5", "done in 0:03"), 17, ""),
        ("look", (), 20, ""),
    ]


def test_a_block_without_an_end_is_refused():
    with pytest.raises(AssertionError, match="line 2 has no end"):
        blocks("a\n```\nb\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1,437 examples, 98.33 % in 0:05", "7 examples, 1 % in 12:00"),
        ("each on CPU x86-64-v3, 1 thread", "each on CPU aarch64, 1 thread"),
        ("weights sha256 " + "a1" * 32, "weights sha256 " + "0f" * 32),
        ("16 kernels compiled in 21.2 s, kept for the next run", "kernels loaded from the cache in 1.2 s"),
        ("ranks  2 on 1 node (laptop), each", "ranks  2 on 1 node (n07), each"),
        ("┃ 12.5 k ┃━━━━━━┓", "┃ 9 k    ┃━━━━┓"),
        ("p0,2.08e-07", "p0,1.5"),
        ("epoch 1/3  87.50% *  12,346", "epoch 1/3  7.50%  1"),
        ("test loss 0.3, accuracy 95.28%; best 96.39% in epoch 2 (*)", "test loss 1.3, accuracy 96.28%"),
    ],
)
def test_figures_are_masked(one, other):
    assert masked(one).split() == masked(other).split()


@pytest.mark.parametrize(
    "shown",
    [
        ["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3", "done in 0:03"],
        ["...", "done in 0:03"],
        ["ringtrain 0.1.0", "..."],
        ["..."],
    ],
)
def test_the_same_but_for_figures(shown):
    assert differences(shown, SAID) == ""


@pytest.mark.parametrize(
    ("shown", "difference"),
    [
        (["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3", "finished in 0:03"], "-finished in 0:0"),
        (["ringtrain 0.1.0", "iteration 1/9, epoch 1/3: loss 3"], "+done in 0:0"),
        (["ringtrain 0.1.0", "done in 0:03"], "+iteration 0/0, epoch 0/0: loss 0"),
        (["...", "ringtrain 0.1.0"], "-..."),
        (["iteration 1/9, epoch 1/3: loss 3", "...", "note: all is well", "..."], "-note: all is well"),
    ],
)
def test_a_difference_is_told(shown, difference):
    assert difference in differences(shown, SAID)


def test_a_transcript_is_written_anew():
    assert anew(["old", "lines"], SAID) == [SAID[0], SAID[1], SAID[3]]
    assert anew(["...", "done: in 0:01", "..."], SAID) == ["...", "done in 0:12", "..."]


def test_a_command_that_fails_or_prints_something_else_fails_the_document(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.playing.ROOT", tmp_path)
    document, number = tmp_path / "d.md", iter(range(99))

    def outcome(text: str, plan: Plan = AS_WRITTEN) -> str:
        document.write_text(f"```\n{text}\n```\n")
        folder = tmp_path / str(next(number))
        folder.mkdir()
        try:
            play(document, Stage(folder), plan)
        except AssertionError as error:
            return str(error)
        return ""

    assert outcome("$ echo 1 mile\n2 mile") == ""
    assert "+0 mile" in outcome("$ echo 1 mile\n2 miles")
    assert "d.md, line 2: $ exit 3\nended with 3" in outcome("exit 3")
    assert outcome("exit 3", Plan(absent={"exit 3": "why"})) == ""
    assert outcome("$ echo yes\nyes", Plan(more={"echo yes": "no"})).endswith("writes them anew")
    assert outcome("$ no-such\n1", Plan(instead={"no-such": "echo 7"})) == ""
    assert outcome("$ echo yes\nno", Plan(unlike={"echo yes": "why"})) == ""
    assert "ended with 3" in outcome("$ exit 3\nno", Plan(unlike={"exit 3": "why"}))
    assert outcome("cat made", Plan(before=("touch made",))) == ""
    assert "before d.md: $ exit 3" in outcome("cat made", Plan(before=("exit 3",)))


def test_files_are_made_and_programs_run_unless_they_are_absent(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.playing.ROOT", tmp_path)
    document = tmp_path / "d.md"
    document.write_text(
        '```toml\n# a.toml\nkey = 1\n```\n```python\nopen("b", "w").write("made")\n```\n```\ncat a.toml b\n```\n'
        "```python\nimport nothing_such\nnothing_such()\n```\n"
    )
    stage = Stage(tmp_path)
    play(document, stage, Plan(absent={"import nothing_such": "why"}))
    assert (stage.folder / "b").read_text() == "made"
