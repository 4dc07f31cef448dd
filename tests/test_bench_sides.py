"""How `scripts/bench pytorch` runs and times its sides; without PyTorch."""

import sys
from types import SimpleNamespace

import pytest

from tests.conftest import BENCHMARKS

RANK = f"""
import os, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import side
_, rank = side.options_and_rank()
side.serve({{
    "block": lambda iterations: 1.0 + rank,
    "threads": lambda: os.environ["OMP_NUM_THREADS"],
    "memory": side.proportional_set_size,
}})
"""


@pytest.fixture
def side(benchmarks):
    return benchmarks("side")


def opened(side, program, ranks=2):
    return side.Processes([[sys.executable, "-c", program]] * ranks, {"threads": 3}, ranks)


def test_ranks_answer_in_their_order_and_the_slowest_counts(side):
    with opened(side, RANK) as processes:
        assert processes.ask("block", iterations=1) == [1.0, 2.0]
        assert side.Side("two", processes).block(1) == 2.0
        assert processes.ask("threads") == ["3", "3"]
        assert min(processes.ask("memory")) > 1 << 20


@pytest.mark.parametrize("program", ["import sys; sys.exit(3)", RANK.replace("1.0 + rank", "1 / 0")])
def test_a_rank_that_ends_ends_the_program(side, program):
    with pytest.raises(SystemExit) as ended, opened(side, program) as processes:
        processes.ask("block", iterations=1)
    assert ended.value.code == 1


def test_sides_take_turns_in_blocks_of_a_least_length_and_a_ratio_is_the_median_of_pairs(side):
    asked = []

    def contestant(name, seconds):
        return SimpleNamespace(name=name, block=lambda iterations: asked.append((name, iterations)) or seconds)

    samples = side.interleaved([contestant("a", 0.125), contestant("b", 2.0)], 1e-9)
    assert asked == [*[("a", 1)] * 2, *[("b", 1)] * 2, *[("a", 2), ("b", 1)] * side.FEWEST]
    assert samples == {"a": [0.125] * side.FEWEST, "b": [2.0] * side.FEWEST}
    ratios = side.ratios({"ringtrain": [1.0, 2.0, 1.0], "peer": [3.0, 2.0, 2.0]}, "peer")
    assert ratios == [3.0, 1.0, 2.0] and side.ratio_text(ratios) == "**2.00** (1.00, 3.00)"


def test_the_first_iteration_is_told_by_its_line(side, tmp_path):
    words = [sys.executable, "-c", "print('preparing'); print('iteration 1/1')"]
    assert 0 < side.first_iteration([words, words], str(tmp_path), {}) < 60
    with pytest.raises(SystemExit, match="no first iteration"):
        side.first_iteration([[sys.executable, "-c", "print('preparing')"]], str(tmp_path), {})


def test_files_that_are_to_be_forgotten_stay(side, tmp_path):
    (tmp_path / "file").write_text("content")
    side.forget([str(tmp_path)])
    assert (tmp_path / "file").read_text() == "content"


def test_a_page_keeps_what_stands_before_its_figures(benchmarks, tmp_path):
    program, page = benchmarks("page"), tmp_path / "page.md"
    page.write_text("# Title\n\n## Figures\n\nold\n")
    program.write_page(str(page), "new\n")
    assert page.read_text() == "# Title\n\n## Figures\n\nnew\n"
    arguments = ["--ranks", "1,2", "--torch", "/a/python", "--page", "p.md", "mlp"]
    assert program.command_line(arguments, "pytorch") == "scripts/bench pytorch --ranks 1,2 mlp"
