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
    row = ddp.finished(SimpleNamespace(ranks=2), {"what": "gpt"}, samples)
    assert ddp.cells(row) == ["gpt, 4 sequences of 128", "2", "2.0 ms", "4.0 ms", "**2.00** (1.00, 3.00)", "3"]
    row = ddp.finished(SimpleNamespace(ranks=2), {"what": "all_reduce 4 KiB", "nbytes": 4096}, samples)
    assert ddp.cells(row)[2:4] == ["2,000.0 µs", "4,000.0 µs"]


def test_each_side_starts_the_same_program_on_as_many_ranks_for_4_bytes_to_64_mebibytes(ddp):
    assert [format_bytes(size) for size in ddp.SIZES[:: len(ddp.SIZES) - 1]] == ["4 B", "64 MiB"]
    options = SimpleNamespace(torch="python", ranks=3)
    gloo, (command,) = ddp.commands(options, "gloo"), ddp.commands(options, "ringtrain")
    assert len(gloo) == 3 and len({tuple(words) for words in gloo}) == 1
    assert command[:3] == ["mpirun", "-np", "3"] and command[-3:] == ["-m", "ringtrain.torch", gloo[0][-1]]


@pytest.mark.parametrize(
    ("words", "message"), [(["alexnet"], "there is no net alexnet"), (["--ranks", "two"], "--ranks: two: give numbers")]
)
def test_mistakes_are_told_at_once(ddp, capsys, words, message):
    with pytest.raises(SystemExit):
        ddp.parse(words)
    assert message in capsys.readouterr().err
