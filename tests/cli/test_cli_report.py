"""``ringtrain report`` as a user runs it, in one process."""

import sys
from pathlib import Path

import pytest

from ringtrain.cli.main import run
from tests.readers import EVENTS
from tests.report.conftest import logged
from tests.says import says


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        logged(tmp_path / name / "log.jsonl", *EVENTS)
    return tmp_path


def call(capsys, words):
    code = run(["report", *words.split()])
    output = capsys.readouterr()
    return code, output.out + output.err


def test_a_page_of_one_run_pictures_and_what_exists_is_replaced_by_force_alone(folder, capsys):
    code, output = call(capsys, "a")
    page = Path("report.html")
    assert (code, output) == (0, says(page, "a", f"{page.stat().st_size / 1e6:.2f} MB"))
    assert page.read_text().startswith("<!DOCTYPE html>") and ">a</h1>" in page.read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "report.html"]
    for words, begin in (("a -o a.svg", b"<?xml"), ("a b -o ab.pdf", b"%PDF")):
        assert call(capsys, words)[0] == 0
        assert Path(words.split()[-1]).read_bytes().startswith(begin)
    Path("r.html").write_text("mine")
    assert call(capsys, "a -o r.html") == (2, says("ringtrain: ", "r.html", "--out", "--force"))
    assert Path("r.html").read_text() == "mine"
    assert call(capsys, "a -o r.html --force")[0] == 0
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>")


REFUSALS = {
    "empty": says("empty", "log.jsonl"),
    "none": says("none", "not", "there"),
    "a empty": says("empty", "log.jsonl"),
    "blank": says("blank", "log.jsonl"),
    "locked": says("locked/log.jsonl", "Is a directory"),
    "a -o r.htm": says("--out", "r.htm", ".html, .png, .svg, .pdf"),
    "a -o none/r.html": says("--out", "none/r.html", "none"),
}


@pytest.mark.parametrize(("words", "message"), REFUSALS.items(), ids=REFUSALS)
def test_what_cannot_be_is_said_and_nothing_is_written(folder, capsys, words, message):
    for name in ("empty", "blank", "locked/log.jsonl"):
        Path(name).mkdir(parents=True)
    Path("blank/log.jsonl").touch()
    before = sorted(folder.rglob("*"))
    assert call(capsys, words) == (2, says("ringtrain: ", message))
    assert sorted(folder.rglob("*")) == before


def test_without_matplotlib(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, output = call(capsys, "a")
    assert code == 2 and output.startswith("ringtrain: ") and "pip install 'ringtrain[plot]'" in output
