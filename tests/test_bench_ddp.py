"""What `scripts/bench ddp` calls the same work, and what it shows; without PyTorch."""

from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.humanize import format_bytes


@pytest.fixture
def ddp(benchmarks):
    return benchmarks("ddp")


@pytest.mark.parametrize(("factor", "same"), [(1.0, True), (1 + 1e-7, True), (1 + 1e-5, False), (np.nan, False)])
def test_gradients_that_differ_by_more_than_rounding_are_refused(ddp, tmp_path, factor, same):
    gradients = np.linspace(-1, 1, 1000)
    np.save(tmp_path / "gloo.npy", gradients)
    np.save(tmp_path / "ringtrain.npy", gradients * factor)
    if same:
        assert ddp.prove("mlp", str(tmp_path)) == pytest.approx(factor - 1, rel=1e-3, abs=1e-12)
    else:
        with pytest.raises(SystemExit, match=r"mlp: gradients of ringtrain and gloo differ by .*: nothing is timed"):
            ddp.prove("mlp", str(tmp_path))


def test_a_row_has_medians_and_the_ratio_of_pairs(ddp, capsys):
    samples = {"ringtrain": [2e-3, 1e-3, 4e-3], "gloo": [4e-3, 3e-3, 4e-3]}
    one_host, hosts = ddp.places("2,2x2:1gbit")
    row = ddp.finished(SimpleNamespace(place=one_host), {"what": "gpt", "alone_s": 1e-3}, samples)
    last = ["**2.00** (1.00, 3.00)", "3"]
    assert ddp.cells(row) == ["gpt, 4 sequences of 128", "2", "4,000.0", "2,000.0", "1.0", "3.0", *last]
    assert len(ddp.cells(row)) == len(ddp.NET_HEADS + ddp.LAST_HEADS)
    row = ddp.finished(SimpleNamespace(place=hosts), {"what": "all_reduce 4 KiB", "nbytes": 4096}, samples)
    assert ddp.cells(row) == ["all_reduce 4 KiB", "2 x 2, 1gbit", "2,000.0", "4,000.0", *last]


def test_a_picture_has_a_panel_a_net_and_a_row_a_place(ddp, tmp_path):
    pytest.importorskip("matplotlib")
    samples = {"ringtrain": [2e-3], "gloo": [4e-3]}
    places = [SimpleNamespace(place=place) for place in ddp.places("2,2x2:1gbit")]
    rows = [ddp.finished(place, {"what": net, "alone_s": 1e-3}, samples) for net in ("gpt", "mlp") for place in places]
    ddp.picture(rows, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_each_side_starts_the_same_program_on_as_many_ranks_for_4_bytes_to_64_mebibytes(ddp):
    assert [format_bytes(size) for size in ddp.SIZES[:: len(ddp.SIZES) - 1]] == ["4 B", "64 MiB"]
    options = SimpleNamespace(torch="python", place=ddp.Place(3))
    gloo, (command,) = ddp.commands(options, "gloo"), ddp.commands(options, "ringtrain")
    assert len(gloo) == 3 and len({tuple(words) for words in gloo}) == 1
    assert command[:3] == ["mpirun", "-np", "3"] and command[-3:] == ["-m", "ringtrain.torch", gloo[0][-1]]
    on_hosts = SimpleNamespace(torch="python", place=ddp.Place(2, 3, "1gbit"))
    (first,), (second,) = (ddp.commands(on_hosts, side) for side in ("gloo", "ringtrain"))
    assert first[1:8] == second[1:8] == ["run", "-n", "3", "--ranks", "2", "--rate", "1gbit"]
    assert second[-3:] == ["-m", "ringtrain.torch", first[-1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alexnet"], "there is no net alexnet"),
        (["--ranks", "two"], "--ranks: two: give numbers"),
        (["--ranks", "2x2"], "2x2:1gbit"),
    ],
)
def test_mistakes_are_told_at_once(ddp, capsys, words, message):
    with pytest.raises(SystemExit):
        ddp.parse(words)
    assert message in capsys.readouterr().err
