"""ringtrain schedule: what people see of schedules, and what they are told when they ask for what cannot be."""

import re

import pytest
from click.testing import CliRunner

from ringtrain.cli.main import run as run_command
from ringtrain.cli.schedule import schedule
from ringtrain.collectives.catalogue import HALVES, SCHEDULES
from tests.says import says


def run(*arguments):
    done = CliRunner().invoke(schedule, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.exception
    return done.output


def cells(output, start):
    (lines,) = [line for line in output.splitlines() if line.replace("│", " ").split()[:1] == [start]]
    return [cell.strip() for cell in lines.split("│")[1:-1]]


def test_list_has_every_schedule_and_show_prints_the_steps_of_every_rank_or_of_one():
    output = run("list")
    for name in SCHEDULES:
        assert cells(output, name)
    assert cells(output, "ring") == ["ring", "14", "14", "1.75 n"]
    output = run("show", "ring", "--ranks", 3)
    assert "ring(ranks=3, chunks=3): all-reduce" in output and says(2, 4, 3, "chunks", "buffer").matches(output)
    assert "  0  →1 0:1  ←2 +2:3\n" in output
    output = run("show", "ring", "--ranks", 1000, "--rank", 999)
    assert "rank 998" not in output and "→0 999:1000" in output


def test_verify_says_what_it_proved_of_rounded_schedules_too():
    output = run("verify", "hierarchical", "--nodes", "4,2,3")
    assert "hierarchical(ranks=9, chunks=12) is proved: all-reduce" in output
    assert "rounds             14" in output and "1.583 to 1.917 of the buffer" in output
    assert "ring-all-gather(ranks=5, chunks=5) is proved: all-gather" in run(
        "verify", "ring", "-n", 5, "--goal", "all-gather"
    )
    assert "hierarchical:sliced:tree(ranks=6, chunks=3)" in run(
        "verify", "hierarchical:sliced:tree", "-n", 6, "--nodes", 2
    )
    assert "    1  1:2 = 1:2\n" in run("show", "ring", "--ranks", 2, "--rounded")
    proved = run("verify", "hierarchical", "--nodes", "2,3", "--rounded")
    assert "hierarchical(ranks=5, chunks=6) is proved: all-reduce, over messages that are rounded" in proved
    slow_links = ("cost", "ring", "--nodes", 2, "--bytes", 1_000_000, "--gbit-s", 0.01)
    whole, half = (cells(run(*slow_links, *more), "1,000,000") for more in ((), ("--rounded",)))
    assert (whole[3], half[3]) == ("1,000,000", "500,000")
    assert float(half[2].replace(",", "")) == pytest.approx(float(whole[2].replace(",", "")) / 2, rel=1e-3)
    assert whole[4] == half[4] == "100.0 %"


def test_shards_are_added_in_one_tree():
    proved = run("verify", "canonical", "--ranks", 6)
    assert "canonical(ranks=6, chunks=6) is proved: all-reduce\nshards             8, added in one tree, by " in proved
    assert "in one tree, by messages and in memory that the ranks share\n" in proved
    assert "shards             8, added in one tree" in run("verify", "sliced", "-n", 4, "--shards", 8)
    assert "shards" not in run("verify", "sliced", "-n", 4)
    lanes = {shards: run("show", "canonical", "-n", 3, "--shards", shards, "--rank", 1) for shards in (3, 8)}
    assert "  0  →2 2:3  →0 0:1  ←2" in lanes[3] and "  0  →2 5:6  →2 2:3  →0 3:4  →0 0:1  ←2" in lanes[8]


def test_cost_predicts():
    output = run(
        "cost", "ring", "--nodes", 2, "--bytes", "1000,1000000", "--gbit-s", 8, "--alpha-us", 0, "--message-us", 0
    )
    assert says("ring(ranks=2, chunks=2)", "1, 1").matches(output)
    # 1 MB: two halves over 1 GB/s, and half a buffer added at 10 GB/s
    assert cells(output, "1,000,000") == ["1,000,000", "ring", "1,050.0", "1,000,000", "95.2 %"]
    assert cells(run("cost", "ring", "-n", 1, "--bytes", 8), "8") == ["8", "ring", "0.0", "0", "100.0 %"]
    both = run("cost", "ring,tree", "--nodes", 2, "--bytes", "4K,1M", "--gbit-s", 25, "--local-gb-s", 3)
    assert re.findall(r"│ +([\d,]+) │ (\w+)", both) == [
        (nbytes, name) for nbytes in ("4,096", "1,048,576") for name in ("ring", "tree")
    ]
    assert "2 µs and 25 Gbit/s between nodes, 0.5 µs and 3 GB/s within" in both


def test_draw_makes_tables_and_pictures(tmp_path):
    output = run("draw", "sliced", "-n", 2)
    assert "│ 0:1 += 4:5 │ 1:2 += 3:4 │" in output and says("added", "overwrite").matches(output)
    wide = run("draw", "tree", "-n", 32)
    assert "rank 31" in wide and "…" not in wide
    assert re.search(says("drawn", "in"), run("draw", "tree", "-o", tmp_path / "tree.svg"))
    assert (tmp_path / "tree.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "rign"], says("--plugin", "'rign'", "did you mean 'ring'?")),
        (["verify", "ring", "--ranks", "0"], says(0, "least", "needed")),
        (["verify", "ring", "--ranks", "3", "--nodes", "4"], says(3, 4, "nodes", "wanted")),
        (["verify", "ring", "-n", "3", "--nodes", "0"], says(3, 0, "nodes", "wanted")),
        (["verify", "ring", "--nodes", "4,0,2"], says(1, "every", "least")),
        (["verify", "ring", "--nodes", "4,x"], says("'x'")),
        (["verify", "ring", "-n", "4", "--nodes", "2,3"], says("2, 3", 5, 4)),
        (["verify", "ring", "-n", "129"], says(129, "a proof", 128, "prove it for fewer")),
        (["cost", "ring", "-n", "513"], says(513, "a prediction", 512)),
        (["draw", "ring", "-n", "33"], says(33, "a drawing", 32)),
        (["show", "ring", "-n", "33"], says(33, "showing all ranks", 32, "name one with --rank")),
        (["show", "ring", "-n", "3", "--rank", "3"], says("--rank", 3, 2)),
        (["cost", "ring", "--gbit-s", "0"], says("--gbit-s", "0")),
        (["cost", "ring", "--alpha-us", "-1"], says("alpha_s", -1e-06)),
        (["cost", "ring", "--bytes", "-5"], says("--bytes", -5)),
        (["draw", "ring", "-o", "ring.gif"], says("ring.gif", ".svg, .png, .pdf")),
        (["verify", "hierarchical", "--goal", "all-gather"], says("'hierarchical'", "all-gather", ", ".join(HALVES))),
        (["verify", "canonical", "-n", "9"], says(9, 8, "shard", "fewer")),
        (["verify", "canonical", "--rounded"], says("'canonical'", "--rounded")),
        (["verify", "canonical", "--goal", "all-gather"], says("--goal all-gather", "adds", "gradients")),
        (["verify", "ring", "--shards", "8", "--rounded"], says("--shards", "--rounded", 8)),
        (["show", "ring", "--shards", "8"], says("--shards", 8, "canonical")),
    ],
)
def test_refusals(capsys, arguments, message):
    assert run_command(["schedule", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
