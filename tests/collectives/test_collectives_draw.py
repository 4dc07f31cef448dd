"""Tables and pictures, as they are drawn from schedules."""

import builtins
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringtrain.collectives.catalogue import SCHEDULES, make_schedule
from ringtrain.collectives.inspect.draw import in_rounds, picture, schedule_table, step_text
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.topology import even, filled
from ringtrain.errors import UsageError
from tests.says import says


def test_the_ring_of_three_and_that_arithmetic_within_a_rank_stands_in_the_round_before_it():
    assert schedule_table(make_schedule("ring", 3)) == [
        ["→1 0:1\n←2 +2:3", "←0 +0:1\n→2 1:2", "←1 +1:2\n→0 2:3"],
        ["→1 2:3\n←2 +1:2", "←0 +2:3\n→2 0:1", "←1 +0:1\n→0 1:2"],
        ["→1 1:2\n←2 0:1", "←0 1:2\n→2 2:3", "←1 2:3\n→0 0:1"],
        ["→1 0:1\n←2 2:3", "←0 0:1\n→2 1:2", "←1 1:2\n→0 2:3"],
    ]
    assert schedule_table(make_schedule("sliced", 2)) == [
        ["→1 1:2\n←1 4:5\n0:1 += 4:5", "←0 3:4\n→0 0:1\n1:2 += 3:4"],
        ["→1 0:1\n←1 1:2", "←0 0:1\n→0 1:2"],
    ]
    schedule = make_schedule("sliced", 2)
    assert [step_text(step, 0) for step in schedule.steps(0)] == ["→1 1:2  ←1 4:5", "0:1 += 4:5", "→1 0:1  ←1 1:2"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_table_has_a_row_for_each_round(name):
    for counts in ((1,), (3,), (5,), (2, 2), (3, 1)):
        schedule = make_schedule(name, filled(counts))
        rows = schedule_table(schedule)
        assert len(rows) == verify_schedule(schedule).rounds and all(len(row) == sum(counts) for row in rows)


def arrows(path):
    """(whole, dashed) arrows of an SVG: each has a shaft, in its own style. The legend has one of each, in its grey."""
    shafts = [e.get("style", "") for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")]
    shafts = [s for s in shafts if "fill: none" in s and "stroke-width: 1.2" in s and "stroke: #444444" not in s]
    dashed = sum("stroke-dasharray" in style for style in shafts)
    return len(shafts) - dashed, dashed


@pytest.mark.parametrize("name", ["ring", "circulant", "hierarchical"])
def test_a_picture_has_an_arrow_for_each_message(name, tmp_path):
    topology = filled((2, 1))
    schedule = make_schedule(name, topology)
    sent = [message for _, message in in_rounds(schedule)]
    picture(schedule, topology, tmp_path / "p.svg")
    adding = sum(message.recv.add for message in sent)
    assert arrows(tmp_path / "p.svg") == (adding, len(sent) - adding)
    text = (tmp_path / "p.svg").read_text()
    assert "rank 2, node 1" in text and f"The {name} all-reduce on 3 ranks: " in text
    assert "the receiver adds it" in text and f"chunk {schedule.chunks - 1}" in text


DOCUMENT = Path(__file__).parents[2] / "docs" / "all-reduces.md"
FIGURES = sorted((DOCUMENT.parent / "figures" / "schedules").glob("*.svg"))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: path.stem)
def test_the_figures_of_the_documents_are_of_these_schedules(figure):
    name, counts = figure.stem.rsplit("-", 1)
    topology = filled(tuple(int(count) for count in counts.split(",")))
    sent = [message for _, message in in_rounds(make_schedule(name, topology)) if message.source != message.target]
    adding = sum(message.recv.add for message in sent)
    assert arrows(figure) == (adding, len(sent) - adding)
    assert f"The {name} all-reduce on {topology.size} ranks: " in figure.read_text()
    assert figure.name in DOCUMENT.read_text()


def test_kinds_of_pictures_and_what_is_none(tmp_path, monkeypatch):
    star = make_schedule("star", 2)
    for name, beginning in (("a.svg", b"<?xml"), ("b.svg", b"<?xml"), ("p.png", b"\x89PNG"), ("p.pdf", b"%PDF")):
        picture(star, even(2), tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(beginning)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()  # the same bytes again
    for path, words in ((tmp_path / "p.gif", ".svg, .png, .pdf"), (tmp_path / "none" / "p.svg", "No such file")):
        with pytest.raises(UsageError, match=says(path, words)):
            picture(star, even(2), path)
    import_module = builtins.__import__

    def refuse(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return import_module(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=says("matplotlib", "pip install 'ringtrain[plot]'")):
        picture(star, even(2), tmp_path / "p.svg")
