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
from matplotlib import rc_context

from ringtrain.config.record import make_config
from ringtrain.config.resolve import to_table
from ringtrain.errors import UsageError
from ringtrain.report.comparison.logs import LOG
from ringtrain.report.events import Failed, Note, RanksLost
from ringtrain.report.page import document, figures, sections, timeline
from ringtrain.report.page.document import report_page
from ringtrain.report.page.inputs import read_reported
from ringtrain.report.trace import DEVICE, LOOP, Slice, read_trace, write_trace
from ringtrain.show import html
from ringtrain.show.figures import INK, RULES, STYLE
from tests.report.conftest import RANKS, ended, epoch, exchanged, iteration, logged, run
from tests.says import says

EVIL = "<script src=//evil.example/x.js></script>&\"' $x^2$ \x1b[2J"
MS = 1_000_000


def of_rank(rank):
    return [
        Slice(LOOP, "iteration 6", 0, 9 * MS),
        Slice(LOOP, "load", 0, MS),
        Slice(LOOP, "forward", MS, 3 * MS),
        Slice(LOOP, "forward conv1", MS, 2 * MS),
        Slice(LOOP, "backward", 3 * MS, 6 * MS),
        Slice(LOOP, "wait gradients 0", 6 * MS, 8 * MS),
        Slice(LOOP, "update", 8 * MS, 9 * MS),
        Slice("gradients 0", "gradients 0", 4 * MS, 8 * MS, {"bytes": 64}),
    ]


def metrics_of(names, counts):
    values = {"precision": 0.5, "recall": 0.25, "f1": 0.125, "iou": None}
    classes = [
        {"class": name, "labelled": sum(row), "predicted": 3} | values for name, row in zip(names, counts, strict=True)
    ]
    return {"checkpoint": "runs/a", "split": "test", "iteration": 7, "classes": classes, "confusion": counts}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run with everything."""
    start = run(date="2026-11-24T11:50:03+00:00", hosts=["node7", "node7"], command="ringtrain train --trace", job="81")
    trained = [iteration(iteration=k, loss=4.0 / k) for k in range(1, 24)]
    lost = RanksLost(lost=[3], ranks=2, replaced=0, resumed_at=4, source="memory", seconds=0.5)
    ranks = replace(RANKS, bytes_sent=[3_000_000, 5_000_000])
    events = [start, Note(text="a disk is full"), lost, *trained, epoch(), exchanged(), ranks, ended()]
    folder = logged(tmp_path_factory.mktemp("runs") / "whole" / LOG, *events)
    config = {key: value for key, value in to_table(make_config(batch=96)).items() if value != []}
    (folder / "config.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
    write_trace(folder / "trace.json", {0: of_rank(0), 1: of_rank(1)})
    (folder / "metrics.json").write_text(json.dumps(metrics_of("ab", [[5, 1], [0, 7]])))
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
        self.open, self.texts, self.ids, self.used = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form"), tag
        assert not [name for name, _ in attrs if name.startswith("on")], attrs
        for name, value in attrs:
            assert name not in self.FETCHING or value.startswith(("#", "data:")), (name, value)
            assert "url(" not in value or "url(#" in value, value
            self.used |= set(re.findall(r"#([\w-]{6,})", value)) if name in self.FETCHING or "url(" in value else set()
        self.ids += [value for name, value in attrs if name == "id"]
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
    assert set(reader.ids) >= reader.used and len(page) < 3 << 20
    return reader


def words(page) -> str:
    return " ".join(" ".join(read(page).texts).split())


def test_a_run_with_everything(page):
    text = words(page)
    for part in (
        "node7", "ringtrain 0.1.0", "2026-11-24 11:50 UTC", "ringtrain train --trace", "81",
        "digits, 34,826 parameters",
        "Learning curves", "Communication", "Timeline", "Results", "Configuration", "Environment", "Notes",
        "a disk is full", "lost rank 3: 2 ranks", "87.50%",
        "460", "setting value default batch 96 64", "a 6 3 50.00% 25.00% 12.50% –",
        "rank 1 68 2 5 0.5 5 512", "2026-11-25 10:00 UTC",
    ):  # fmt: skip
        assert part in text, part
    assert not says("Not", "report").matches(text)
    assert page.count("<svg ") == 4


def test_every_picture_is_xml_by_itself_shares_no_id_and_takes_the_colours_of_the_page(page):
    pictures = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img" and root.get("aria-label")
    ids = [set(re.findall(r' id="([^"]+)"', picture)) for picture in pictures]
    assert sum(map(len, ids)) == len(set().union(*ids)) > 0
    assert not [each for each in (INK, RULES, "#000000") if each in page.split("</style>")[1]]
    assert all(word in page for word in ("currentColor", "var(--rule)", "prefers-color-scheme: dark", "@media print"))


def test_what_a_run_lacks_is_a_line_and_names_are_text_wherever_they_stand(bare):
    text = words(page_of(bare))
    assert all(line in text for line in ("config.toml", "--trace", "cut short"))
    for heading in ("Communication", "Timeline", "Results", "Configuration"):
        assert f"{heading} " not in text.split("Not in this report")[0]
    assert says("cut short", "1").matches(text)
    page = page_of(bare)
    assert words(page).count("<script src=//evil.example/x.js></script>&\"' $x^2$ \\x1b[2J") >= 4
    assert "default-src 'none'" in page


def test_a_run_without_an_iteration(tmp_path):
    folder = logged(tmp_path / "none" / LOG, run(), Failed(error="StalledError", text="rank 1 did not come"))
    text = words(page_of(folder))
    assert says("learning", "curves").matches(text) and "rank 1 did not come" in text
    assert says("failed", "0").matches(text)


def test_spoiled_parts_are_left_out_with_their_reason(whole):
    for name in ("trace.json", "metrics.json", "config.toml"):
        (whole / name).write_text("[1")
    text = "\n".join(read_reported(whole, "a").left_out)
    assert all(str(whole / name) in text for name in ("trace.json", "metrics.json", "config.toml"))
    write_trace(whole / "trace.json", {})
    assert says(whole / "trace.json").matches(read_reported(whole, "a").left_out)


def test_metrics_that_are_named_must_be_there(whole, tmp_path):
    (whole / "metrics.json").rename(tmp_path / "m.json")
    assert read_reported(whole, "a", tmp_path / "m.json").metrics.split == "test"
    with pytest.raises(UsageError, match=rf"{tmp_path}/n\.json .*No such file"):
        read_reported(whole, "a", tmp_path / "n.json")


def test_a_trace_is_read_in_the_run_folder_alone(whole, tmp_path):
    """The configuration may be another's, and name any file of this machine."""
    (whole / "trace.json").rename(tmp_path / "t.json")
    with open(whole / "config.toml", "a") as file:
        file.write(f'trace = "{tmp_path}/t.json"\n')
    reported = read_reported(whole, "a")
    assert not reported.trace and says(tmp_path / "t.json", whole / "t.json").matches(reported.left_out)
    (tmp_path / "t.json").rename(whole / "t.json")
    assert list(read_reported(whole, "a").trace) == [0, 1]
    (whole / "t.json").rename(tmp_path / "t.json")
    (whole / "t.json").symlink_to(tmp_path / "t.json")
    assert not read_reported(whole, "a").trace


def test_several_runs_beside_one_another(whole, bare):
    page = page_of(whole, bare)
    text = words(page)
    assert says(2, "whole, bare").matches(text)
    differing = text.split("What differs")[1].split("Notes")[0]
    assert "ranks 2 1" in differing and "batch 96 –" in differing and "version" not in differing
    assert says("bare", "1").matches(text)
    assert page.count("<svg ") == 4 and says("Not", "report").matches(text)
    assert says("fact", "environment").matches(words(document._differences([read_reported(whole, "a")] * 2)))


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


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_html_is_escaped_once():
    assert html.tag("p", "a < b", html.tag("b", "&"), class_='"x"') == (
        '<p class="&quot;x&quot;">a &lt; b<b>&amp;</b></p>'
    )


def test_a_timeline_has_rows_for_loop_and_buckets_of_the_last_iterations_of_the_first_ranks():
    on_device = [*of_rank(0), Slice(DEVICE, "forward", MS, 4 * MS)]
    axes = timeline.timeline_figure({0: on_device, 1: of_rank(1)}).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["rank 0", says("device"), says("buckets"), "rank 1", says("buckets")]
    assert axes.get_xlim() == (0, 9) and [text.get_text() for text in axes.texts] == ["iteration 6"]
    long = [Slice(LOOP, f"iteration {k}", 10 * k * MS, 10 * (k + 1) * MS) for k in range(9)]
    axes = timeline.timeline_figure(dict.fromkeys(range(40), long)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["iteration 6", "iteration 7", "iteration 8"]
    assert len(axes.get_yticks()) == timeline.MOST_RANKS
    assert timeline._joined([(0, 1), (2, 3), (10, 20), (15, 17)], 1) == [(0, 3), (10, 20)]  # too short to be seen


def test_buckets_are_those_that_take_longest_and_a_confusion_matrix_has_counts_while_they_fit():
    buckets = [
        {"what": "gradients", "spans": f"s{k}", "nbytes": 1024, "total_s": 0.001 * (20 - k), "exposed_s": None}
        for k in range(20)
    ]
    axes = figures.buckets_figure(buckets).axes[0]
    labels = [label.get_text().split("\n")[1] for label in axes.get_yticklabels()]
    assert labels == [f"s{k}" for k in range(figures.MOST_BUCKETS)]
    with rc_context(STYLE):
        small = figures.confusion_figure([[3, 1], [0, 0]], ["cat", EVIL]).axes[0]
        large = figures.confusion_figure([[1] * 60] * 60, ["c"] * 60).axes[0]
    assert [text.get_text() for text in small.texts] == ["3", "1"] and not large.texts
    assert small.get_xticklabels()[1].get_text().endswith("…")


def test_many_ranks_and_classes_are_told_in_short(whole):
    of_many = {"images": list(range(40)), "peak_bytes": [1 << 20] * 40}
    assert "least 0 1" in words(sections._by_rank(of_many)) and "most 39 1" in words(sections._by_rank(of_many))
    names = [f"c{k}" for k in range(60)]
    (whole / "metrics.json").write_text(json.dumps(metrics_of(names, [[1] * 60] * 60)))
    text = words("".join(sections.classes(read_reported(whole, "a"))))
    assert says(sections.MOST_CLASSES, "60").matches(text)


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────
def test_a_trace_is_read_as_it_was_written(tmp_path):
    write_trace(tmp_path / "t.json", {1: of_rank(1), 0: [Slice(DEVICE, "x", 5, 5000)]})
    slices = read_trace(tmp_path / "t.json")
    assert list(slices) == [0, 1] and slices[0] == [Slice(DEVICE, "x", 5, 5000)]
    assert sorted(each.name for each in slices[1]) == sorted(each.name for each in of_rank(1))
