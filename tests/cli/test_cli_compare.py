"""``ringtrain compare`` as a user runs it, in one process."""

import csv
import json
import re
import shutil
from contextlib import chdir
from functools import partial
from pathlib import Path

import pytest

from ringtrain.cli.compare import compare
from ringtrain.cli.variants import folders_of, variants_of
from ringtrain.train.start import start
from tests.cli_calls import call as call_command
from tests.says import says

QUICK = ("--", "--ops", "reference", "--iterations", "2", "--batch", "30")


call = partial(call_command, compare)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(folder in which two strategies were trained, exit code, what was said)."""
    folder = tmp_path_factory.mktemp("trained")
    with chdir(folder):
        sync = "allreduce,averaging --average-every 2"
        return folder, *call("--sync", sync, "--out", "c", "--csv", "c.csv", *QUICK)


@pytest.fixture
def copied(run, trained):
    """A copy of its runs, in the current folder."""
    shutil.copytree(trained[0] / "c", "c")
    Path("c/averaging-average-every-2").rename("c/averaging")


def test_strategies_are_trained_and_compared(trained):
    folder, code, output = trained
    assert code == 0, output
    assert re.search(says(1, 2, "allreduce"), output) and re.search(says(2, "averaging --average-every 2"), output)
    assert {path.name for path in (folder / "c").iterdir()} == {
        "allreduce", "averaging-average-every-2", "compare.json", "compare.png"
    }  # fmt: skip
    table = output[output.index("run  ") :]
    assert "averaging every 2, momentum:" in table and says("c/compare.png").matches(table)
    rows = json.loads((folder / "c" / "compare.json").read_text())["rows"]
    outcomes = [(row["name"], row["outcome"], row["iterations"]) for row in rows]
    assert outcomes == [("allreduce", "done", 2), ("averaging --average-every 2", "done", 2)]
    lines = (folder / "c.csv").read_text().splitlines()
    assert [row["name"] for row in csv.DictReader(lines)] == [row["name"] for row in rows]


def test_variants_of_other_flags_one_of_which_fails(run):
    code, output = run("--variant", "calm: --lr 0.01", "--variant", "hot: --lr 1e30", "--json", "c.json", *QUICK)
    assert code == 1
    assert re.search(says("'hot'") + "the loss is", output) and "note: hot: the loss is" in output
    assert says("different learning rates: 0.01, but 1e+30 (hot)").matches(output)
    content = json.loads(Path("c.json").read_text())
    assert [row["outcome"] for row in content["rows"]] == ["done", "diverged"]
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("compare-") and (folder / "compare.png").exists()


@pytest.fixture(scope="module")
def over_seeds(tmp_path_factory):
    """(folder in which two variants were trained with two seeds, exit code, what was said)."""
    folder = tmp_path_factory.mktemp("seeds")
    arguments = ("--variant", "a: --lr 0.1", "--variant", "b c: --lr 0.1 --seed 1")
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "draw_curves", lambda log, png: "not in this test")
        return folder, *call(*arguments, "--seeds", "2", "--out", "c", "--csv", "c.csv", *QUICK)


def test_variants_over_seeds_are_trained_in_turn(over_seeds):
    folder, code, output = over_seeds
    assert code == 0, output
    names = ["a, seed 0", "b c, seed 1", "a, seed 1", "b c, seed 2"]
    begun = [line for line in output.splitlines() if line.startswith("== ")]
    assert begun == [says(f"{k} of 4: {name}") for k, name in enumerate(names, start=1)]
    content = json.loads((folder / "c" / "compare.json").read_text())
    assert [(row["name"], row["variant"], row["seed"]) for row in content["rows"]] == [
        (name, name.partition(",")[0], int(name[-1])) for name in names
    ]
    assert content["rows"][1]["test_loss"] == content["rows"][2]["test_loss"]  # both of seed 1
    first, second = content["variants"]
    assert (first["name"], first["seeds"], second["seeds"]) == ("a", [0, 1], [1, 2])
    losses = [row["test_loss"] for row in content["rows"][::2]]
    assert first["test_loss"] == pytest.approx(sum(losses) / 2)
    assert first["test_loss_sd"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    assert "different seeds: 0, 1, but 1, 2 (b c)" in output and says("c/compare.png").matches(output)
    kinds = [line["kind"] for line in csv.DictReader((folder / "c.csv").read_text().splitlines())]
    assert kinds == ["run"] * 4 + ["mean"] * 2
    assert {path.name for path in (folder / "c").iterdir()} >= {"a-seed-0", "a-seed-1", "b-c-seed-1", "b-c-seed-2"}


def test_runs_that_are_there_are_averaged_over_seeds(run, over_seeds):
    folder = over_seeds[0] / "c"
    code, output = run("--over-seeds", *(f"{folder}/a-seed-{k}" for k in (0, 1)), "--json", "c.json")
    (variant,) = json.loads(Path("c.json").read_text())["variants"]
    before = json.loads((folder / "compare.json").read_text())["variants"][0]
    assert code == 0 and variant == before and re.search(r"\na .* 2 ", output)
    runs = ("b-c-seed-2", "a-seed-1", "a-seed-0")
    for name, day in zip(runs, (3, 2, 1), strict=True):
        log = Path(shutil.copytree(folder / name, name), "log.jsonl")
        log.write_text(re.sub('"date": "[^"]*"', f'"date": "2026-01-0{day}T00:00:00"', log.read_text()))
    for flags, order in (  # in order of date, or as asked
        (("--over-seeds",), ["a-seed-0", "a-seed-1", "b-c-seed-2"]),
        (("--baseline", "a-seed-1"), ["a-seed-1", "b-c-seed-2", "a-seed-0"]),
    ):
        assert run(*flags, *runs, "--json", "d.json")[0] == 0
        assert [row["name"] for row in json.loads(Path("d.json").read_text())["rows"]] == order
    code, output = run("--baseline", "a-sed-1", *runs)
    assert code == 2 and says("--baseline", "did you mean 'a-seed-1'?").matches(output)
    code, output = run("--over-seeds", f"{folder}/a-seed-1", f"{folder}/b-c-seed-1")  # of one seed
    assert code == 2 and says("--over-seeds", "seed alone").matches(output)


def test_runs_that_are_there(run, copied):
    shutil.copytree("c", "d")
    code, output = run("c/allreduce", "d/allreduce")
    assert code == 0 and "\nc/allreduce " in output and "\nd/allreduce " in output
    Path("c/compare.png").write_text("mine")
    code, output = run("c/allreduce", "c/averaging/")
    assert code == 0 and "averaging every 2" in output and "picture" not in output
    assert Path("c/compare.png").read_text() == "mine" and not Path("compare.png").exists()
    with open("c/averaging/log.jsonl", "rb+") as log:  # as if it was killed
        log.truncate(len(log.read()) * 3 // 4)
    code, output = run("c/averaging", "--plot", "p.svg")
    assert code == 0 and "cut short" in output and "note: averaging: the log ends after iteration 2" in output
    assert says("p.svg").matches(output) and Path("p.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), says("nothing to compare", "--sync")),
        (("nowhere",), says("nowhere", "not", "there")),
        ((".",), says(".", "log.jsonl")),
        (("a", "--", "--lr"), says("--sync", "--variant", "--lr")),
        (("a", "--out", "o"), says("--out", "--sync", "--variant", "o")),
        (("--sync", "allreduce,shardd", *QUICK), "variant 'shardd': " + says("--sync", "--plugin", "'shardd'")),
        (("--sync", "allreduce,,delayed"), says("--sync has nothing")),
        (("--sync", "allreduce,allreduce"), says("'allreduce'", "twice")),
        (("--sync", "allreduce --lr x"), says("'allreduce --lr x'") + "Invalid value for '--lr'"),
        (("--sync", "allreduce", "--", "--out", "o"), says("--out", "'allreduce'", "o")),
        (("--variant", "a: --learning-rate 1"), says("'a'", "No such option", "--learning-rate", "use --lr")),
        (("--variant", "large"), says("--variant", "--batch", "--lr", "'large'")),
        (("--variant", "large:"), says("--variant 'large' has no options", "add", "options")),
        (("--variant", "large: --lr '1"), says("'large'", '" --lr \'1"', "No closing quotation")),
        (("--sync", "allreduce", "--plot", "p.pgn", *QUICK), "--plot p.pgn: .*'pgn'"),
        (("--sync", "allreduce", "--json", "no/c.json", *QUICK), says("no/c.json")),
        (("a", "--seeds", "2"), says("--seeds", "--sync", "--variant", "--over-seeds", 2)),
        (("--sync", "allreduce", "--over-seeds", *QUICK), says("--over-seeds", "--seeds")),
        (("--sync", "allreduce", "--baseline", "b", *QUICK), says("--baseline", "first", "put b there")),
        (("--plugin", "no.py", "--sync", "mine", *QUICK), says("no.py")),
        (("--sync", "allreduce", "--seeds", "0", *QUICK), "^0 is not in the range x>=1"),
        (
            ("--sync", "allreduce", "--seeds", "2", *QUICK, "--seed", str(2**63 - 1)),
            "variant 'allreduce, seed 9223372036854775808': --seed is a number of 19 digits",
        ),
        (
            ("--sync", "averaging --average-every 0", *QUICK),
            says("'averaging --average-every 0'", "--average-every 0: "),
        ),
    ],
)
def test_refusals(run, arguments, message):
    code, said = run(*arguments)
    assert code == 2 and re.search(message, said), said
    assert not Path("runs").exists()


def test_a_folder_that_is_used_is_not_used_again(run, copied):
    code, said = run("--sync", "delayed,allreduce", "--out", "c", *QUICK)
    assert code == 2 and re.search(says("--out", "c/allreduce", "c"), said)
    assert not Path("c/delayed").exists()


def test_variants_as_users_write_them():
    variants = variants_of(("--epochs", "1"), ("allreduce --lr-policy multistep --lr-steps 10,20,delayed",), ())
    assert [variant.flags for variant in variants] == [
        {"sync": "allreduce", "lr_policy": "multistep", "lr_steps": [10, 20], "epochs": 1},
        {"sync": "delayed", "epochs": 1},
    ]
    (variants,) = variants_of(("--lr", "1", "--batch", "30"), (), ("large: --lr 2",))
    assert (variants.name, variants.flags) == ("large", {"lr": 2.0, "batch": 30})
    named = variants_of((), (), ("a b: --lr 1", "a/b: --lr 1", "é: --lr 1"))
    assert folders_of("c", named) == ["c/a-b", "c/a-b-2", "c/variant"]
