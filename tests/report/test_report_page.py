"""The page of a report: whole HTML that asks for nothing, with what a run has and a line for what it lacks."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringtrain.config.record import make_config
from ringtrain.config.resolve import to_table
from ringtrain.report import page as pages
from ringtrain.report.comparison.logs import LOG
from ringtrain.report.events import Failed, Note, RanksLost
from ringtrain.report.page import read_reported, report_page, tag
from tests.report.conftest import RANKS, ended, epoch, exchanged, iteration, logged, run
from tests.says import says

EVIL = "<script src=//evil.example/x.js></script>&\"' $x^2$ \x1b[2J"


def write_metrics(folder, names, counts):
    classes = [{"class": name, "labelled": 3, "iou": None} for name in names]
    content = {"checkpoint": "runs/a", "split": "test", "iteration": 7, "classes": classes, "confusion": counts}
    (folder / "metrics.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run with everything."""
    start = run(date="2026-11-24T11:50:03+00:00", hosts=["node7", "node7"], command="ringtrain train --trace", job="81")
    trained = [iteration(iteration=k, loss=4.0 / k) for k in range(1, 24)]
    lost = RanksLost(lost=[3], ranks=2, replaced=0, resumed_at=4, source="memory", seconds=0.5)
    ranks = replace(RANKS, bytes_sent=[3_000_000, 5_000_000])
    events = [start, Note(text="a disk is full"), lost, *trained, epoch(), exchanged(), ranks, ended()]
    folder = logged(tmp_path_factory.mktemp("runs") / "whole" / LOG, *events)
    config = {key: value for key, value in to_table(make_config(batch=96, trace="t.json")).items() if value != []}
    (folder / "config.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    write_metrics(folder, ["cat", EVIL], [[5, 1], [0, 7]])
    return folder


@pytest.fixture(scope="module")
def page(kept):
    """Its page."""
    return page_of(kept)


@pytest.fixture
def whole(kept, tmp_path):
    """A copy of the run, to change."""
    return Path(shutil.copytree(kept, tmp_path / "whole"))


@pytest.fixture
def bare(tmp_path):
    """A run of one rank that was killed in its first iterations, and whose names are an attack."""
    return logged(
        tmp_path / "bare" / LOG, run(model=EVIL, data=EVIL, ranks=1, command=EVIL), iteration(), Note(text=EVIL)
    )


def page_of(*folders):
    return report_page([read_reported(folder, folder.name) for folder in folders], "2026-11-25 10:00 UTC")


class Reader(HTMLParser):
    """Collects the texts; refuses a page whose elements do not nest, and anything that a browser would fetch or run."""

    VOID, FETCHING = {"meta"}, {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form"), tag
        assert not [name for name, _ in attrs if name.startswith("on")], attrs
        for name, value in attrs:
            assert name not in self.FETCHING or value.startswith(("#", "data:")), (name, value)
            assert "url(" not in value or "url(#" in value, value
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)
        else:
            assert "url(" not in data and "@import" not in data


def read(page) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    assert len(page) < 3 << 20
    return reader


def words(page) -> str:
    return " ".join(" ".join(read(page).texts).split())


def test_a_run_with_everything(kept, page):
    text = words(page)
    for part in (
        "node7", "version 0.1.0", "2026-11-24 11:50 UTC", "command ringtrain train --trace", "job 81",
        "parameters 34826", "Results", "Learning curves", "Communication", "Confusion matrix", "Options", "Environment",
        "Notes", "a disk is full", "lost rank 3: 2 ranks", "87.50",
        "batch 64 96", "gradients conv.weight ring 1 MiB 250 32.5", "cat 5 1", "2026-11-25 10:00 UTC",
        f"trace {kept}/t.json, for https://ui.perfetto.dev",
    ):  # fmt: skip
        assert part in text, part
    assert not says("Not", "report").matches(text)


def test_the_picture_is_xml_by_itself_and_takes_the_colours_of_the_page(page):
    (picture,) = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img" and root.get("aria-label")
    assert not [each for each in (pages.INK, pages.RULES, "#000000") if each in picture]
    assert all(word in page for word in ("currentColor", "var(--rule)", "prefers-color-scheme: dark"))


def test_what_a_run_lacks_is_a_line_and_names_are_text_wherever_they_stand(bare):
    page = page_of(bare)
    text = words(page)
    present, absent = text.split("Not in this report")
    assert all(line in absent for line in ("config.toml", "metrics.json", "cut short"))
    assert not [title for title in ("Communication", "Confusion matrix", "Options") if f"{title} " in present]
    assert "bare: the log ends after iteration 1," in present
    assert text.count("<script src=//evil.example/x.js></script>&\"' $x^2$ \\x1b[2J") >= 4
    assert "default-src 'none'" in page
    assert tag("p", "a < b", tag("b", "&"), class_='"x"') == '<p class="&quot;x&quot;">a &lt; b<b>&amp;</b></p>'


def test_a_run_without_an_iteration(tmp_path):
    folder = logged(tmp_path / "none" / LOG, run(), Failed(error="StalledError", text="rank 1 did not come"))
    text = words(page_of(folder))
    assert says("learning", "curves").matches(text) and "none: rank 1 did not come" in text and " failed " in text


def test_spoiled_parts_are_left_out_with_their_reason_and_so_is_a_matrix_of_many_classes(whole):
    for name in ("metrics.json", "config.toml"):
        (whole / name).write_text("[1")
    text = "\n".join(read_reported(whole, "a").left_out)
    assert all(str(whole / name) in text for name in ("metrics.json", "config.toml"))
    (whole / "config.toml").write_text("trace = 3\n")
    write_metrics(whole, map(str, range(101)), [[1] * 101] * 101)
    text = words(page_of(whole))
    assert says("100 classes", whole / "metrics.json").matches(text) and "label \\ predicted" not in text


def test_several_runs_beside_one_another(whole, bare):
    page = page_of(whole, bare)
    text = words(page)
    assert says(2, "whole, bare").matches(text)
    assert "ranks 2 1" in text and "batch 64 96 –" in text and "different numbers of ranks: 2, but 1 (bare)" in text
    bold = [words(line) for line in re.findall(r'<tr class="differs">.*?</tr>', page)]
    assert "ranks 2 1" in bold and "batch 64 96 –" in bold and not [line for line in bold if "version" in line]
    assert page.count("<svg ") == 1 and "bare: configuration" in text


LOOK = """<script>document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  asked: performance.getEntriesByType("resource").map(each => each.name),
  paper: getComputedStyle(document.body).backgroundColor,
  outside: [...document.querySelectorAll("svg text")].filter(each => {
    const box = each.getBoundingClientRect(), of = each.ownerSVGElement.getBoundingClientRect();
    return box.left < of.left - 3 || box.right > of.right + 3 || box.top < of.top - 3 || box.bottom > of.bottom + 3;
  }).map(each => each.textContent),
})</script>"""
CHROMIUM = shutil.which("chromium")


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "scheme", "paper"), [(1240, 1, "rgb(255, 255, 255)"), (600, 0, "rgb(21, 24, 28)")])
def test_a_browser_asks_for_nothing_and_has_all_within_its_width(whole, bare, tmp_path, width, scheme, paper):
    """In light and in dark. The page's policy is taken out: it would refuse what must not be there, and this look."""
    page = re.sub("<meta http-equiv[^>]*>", "", page_of(whole, bare)).replace("</body>", f"{LOOK}</body>")
    (tmp_path / "report.html").write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    flags += [f"--window-size={width},1000", f"--blink-settings=preferredColorScheme={scheme}"]
    command = [CHROMIUM, *flags, f"file://{tmp_path}/report.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert seen == {"wide": 0, "asked": [], "paper": paper, "outside": []}
