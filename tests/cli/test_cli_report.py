"""``ringtrain report`` as a user runs it, in one process."""

import sys
from pathlib import Path

import pytest

from ringtrain.cli import texts as cli_texts
from ringtrain.cli.main import run
from ringtrain.report import texts as report_texts
from ringtrain.report.page import texts as page_texts
from ringtrain.report.sinks import JsonLines
from ringtrain.storage import texts as storage_texts
from tests.readers import EVENTS


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with two runs."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
        log = JsonLines(f"{name}/log.jsonl")
        for event in EVENTS:
            log.handle(event)
        log.close()
    return tmp_path


def call(capsys, words):
    code = run(["report", *words.split()])
    told = capsys.readouterr()
    return code, told.out + told.err


def test_a_page_of_one_run(here, capsys):
    code, told = call(capsys, "a")
    page = Path("report.html")
    assert (code, told) == (0, cli_texts.REPORTED(out=page, runs="a", size=page.stat().st_size / 1e6) + "\n")
    assert page.read_text().startswith("<!DOCTYPE html>") and ">a</h1>" in page.read_text()
    assert sorted(path.name for path in here.iterdir()) == ["a", "b", "report.html"]


def test_pictures_alone(here, capsys):
    for words, begin in (("a -o a.svg", b"<?xml"), ("a b -o ab.pdf", b"%PDF")):
        assert call(capsys, words)[0] == 0
        assert Path(words.split()[-1]).read_bytes().startswith(begin)


def test_what_exists_is_replaced_by_force_alone(here, capsys):
    Path("r.html").write_text("mine")
    assert call(capsys, "a -o r.html") == (2, f"ringtrain: {cli_texts.REPORT_EXISTS(out='r.html')}\n")
    assert Path("r.html").read_text() == "mine"
    assert call(capsys, "a -o r.html --force")[0] == 0
    assert Path("r.html").read_text().startswith("<!DOCTYPE html>")


def refusals():
    no_log = report_texts.NO_RUN(folder="empty", why=report_texts.NO_LOG(log="log.jsonl"))
    not_there = report_texts.NO_RUN(folder="none", why=report_texts.NOT_THERE())
    endings = ".html, .png, .svg, .pdf"
    return [
        ("empty", no_log),
        ("none", not_there),
        ("a empty", no_log),
        ("blank", report_texts.NO_RUN(folder="blank", why=report_texts.NO_START(log="log.jsonl"))),
        ("locked", report_texts.UNREADABLE(path="locked/log.jsonl", error="Is a directory")),
        ("a -o r.htm", cli_texts.REPORT_ENDING(out="r.htm", endings=endings)),
        ("a -o none/r.html", storage_texts.NO_FOLDER(path="none/r.html", folder="none")),
        ("a b --metrics m.json", cli_texts.METRICS_OF_ONE(count=2)),
        ("a --metrics m.json", page_texts.UNREADABLE(path="m.json", error="No such file or directory")),
    ]


@pytest.mark.parametrize(("words", "told"), refusals(), ids=[words for words, _ in refusals()])
def test_what_cannot_be_is_said_and_nothing_is_written(here, capsys, words, told):
    for name in ("empty", "blank", "locked/log.jsonl"):
        Path(name).mkdir(parents=True)
    Path("blank/log.jsonl").touch()
    before = sorted(here.rglob("*"))
    assert call(capsys, words) == (2, f"ringtrain: {told}\n")
    assert sorted(here.rglob("*")) == before


def test_without_matplotlib(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert call(capsys, "a") == (2, f"ringtrain: {report_texts.PICTURE_NEEDS_MATPLOTLIB()}\n")
