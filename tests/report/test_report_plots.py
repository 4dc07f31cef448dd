import sys

import pytest
from matplotlib.image import imread

from ringtrain.report import plots, texts
from ringtrain.report.events import Evaluated
from ringtrain.report.plots import draw_curves, field_series, read_log, running_mean, thin_out
from ringtrain.report.sinks import JsonLines


def write(path, happened):
    log = JsonLines(path)
    for event in happened:
        log.handle(event)
    log.close()
    return path


def colour_of(text):
    return [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def has(picture, colour):
    """Whether some pixels of the picture are of this colour."""
    near = abs(picture[:, :, :3] - colour_of(colour)).max(axis=2) < 0.02
    return near.sum() > 20


@pytest.fixture
def log(tmp_path, run, iteration, epoch, ended):
    trained = [iteration(iteration=k, loss=4.0 / k, accuracy=1 - 1 / k) for k in range(1, 50)]
    tested = [epoch(iteration=k, test_loss=2.0 / k, test_accuracy=1 - 0.5 / k) for k in (10, 30, 49)]
    return write(tmp_path / "log", [run(), *trained, *tested, ended()])


def test_a_picture_with_both_curves(log, tmp_path):
    assert draw_curves(log, tmp_path / "curves.png") is None
    picture = imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (504, 1200)
    assert has(picture, plots.TRAIN)
    assert has(picture, plots.TEST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "log"]


def test_a_run_without_a_test_part_and_without_an_end(tmp_path, run, iteration, epoch):
    happened = [run(), iteration(iteration=1), epoch(iteration=1, test_loss=None, test_accuracy=None)]
    assert draw_curves(write(tmp_path / "log", happened), tmp_path / "curves.png") is None
    assert not has(imread(tmp_path / "curves.png"), plots.TEST)


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path, run, iteration):
    happened = [run(), iteration(iteration=1), iteration(iteration=2, loss=float("nan")), iteration(iteration=3)]
    found = read_log(write(tmp_path / "log", happened))["iteration"]
    assert field_series(found, "loss", 1.0) == ([1, 3], [2.3, 2.3])
    assert draw_curves(tmp_path / "log", tmp_path / "curves.png") is None


def test_evaluations_within_an_epoch_are_test_points_too(tmp_path, iteration):
    evaluated = Evaluated(iteration=5, epoch=1, test_loss=1.0, test_accuracy=0.5, seconds=1.0)
    write(tmp_path / "log", [iteration(), evaluated])
    assert draw_curves(tmp_path / "log", tmp_path / "curves.png") is None
    assert has(imread(tmp_path / "curves.png"), plots.TEST)


def test_torn_lines_are_passed_over(log, tmp_path):
    with open(log, "ab") as file:
        file.write(b'{"event": "iter')
    assert len(read_log(log)["iteration"]) == 49


# Why there is no picture.


def test_no_matplotlib(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_curves(log, tmp_path / "curves.png") == texts.NO_MATPLOTLIB()


def test_no_iteration(tmp_path, run):
    write(tmp_path / "log", [run()])
    assert draw_curves(tmp_path / "log", tmp_path / "curves.png") == texts.NOTHING_TO_DRAW(path=tmp_path / "log")


def test_no_log(tmp_path):
    assert draw_curves(tmp_path / "log", tmp_path / "curves.png") == texts.UNDRAWN(
        path=tmp_path / "log", problem="No such file or directory"
    )


def test_no_folder_to_draw_into(log, tmp_path):
    assert "No such file or directory" in draw_curves(log, tmp_path / "none" / "curves.png")


# The arithmetic.


def test_a_running_mean_keeps_lines_and_smooths_noise():
    assert running_mean([]) == []
    assert running_mean([1.0, 5.0, 3.0]) == [1.0, 5.0, 3.0]
    line = [float(k) for k in range(400)]
    assert running_mean(line)[4:-4] == line[4:-4]
    assert max(running_mean([0.0, 9.0] * 200)) <= 9 * 3 / 5


@pytest.mark.parametrize("count", [1, 2, 1499, 1500, 1501, 3000, 4000])
def test_thin_curves_keep_their_end(count):
    x, y = thin_out(range(count), range(count))
    assert x == y
    assert x[-1] == count - 1
    assert 0 < len(x) <= plots.POINTS
