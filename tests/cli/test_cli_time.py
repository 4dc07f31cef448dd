"""``ringtrain time`` as a user runs it."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtrain.bench.layers.layer_rows import layer_table
from ringtrain.cli.time import time
from ringtrain.show.tables import print_whole
from tests.says import says

QUICK = ("digits", "--batch", "5", "-n", "3", "--ops", "reference")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(time, list(arguments), standalone_mode=False)

    return run


def test_plain_where_there_is_no_terminal(run):
    done = run(*QUICK)
    assert done.return_value == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("ringtrain")
    assert lines[0] == says("digits", "5 images", "1 rank", "float32", "reference")
    assert lines[1].startswith("medians of 3 iterations after 2; cores by rank: ")
    assert lines[2].split()[:2] == ["layer", "kind"]
    assert any(line.startswith("all layers") for line in lines)
    last = [says("fc1 to fc2"), says("ms", "exchange"), says("gradients", "optimizer"), says("peak", "GFLOP")]
    assert lines[-4:] == last
    assert "\x1b" not in done.output


def test_json_has_everything(run, tmp_path):
    done = run(*QUICK, "--json", "t.json", "--dtype", "float64")
    assert done.return_value == 0, done.output
    output = json.loads((tmp_path / "t.json").read_text())
    header = output["header"]
    assert (header["model"], header["batch"], header["dtype"], header["optimizer"]) == ("digits", 5, "float64", "adamw")
    assert header["ranks"] == 1 and header["peak_bytes"] > header["held_bytes"] == 4 * 8 * padded(output)
    assert all(len(row["forward_samples_s"]) == 3 for row in output["rows"] if row["kind"])
    beside = {row["layer"]: row["backward_s"] for row in output["rows"] if not row["kind"]}
    assert list(beside) == ["input", "loss", "update", "between layers"] and beside["input"] > 0
    assert header["host_cores"] >= 1
    assert header["peak_flops_per_s"] > 0 and header["peak_bytes_per_s"] > 0
    conv, flat = (next(row for row in output["rows"] if row["layer"] == name) for name in ("conv1", "flat"))
    assert conv["peak_share"] > 0 and conv["way"] == "" and flat["peak_share"] is None
    assert output["totals"]["exchange_bytes"] == 8 * 76_522
    assert output["totals"]["images_per_s"] > 0
    assert output["totals"]["fc_parameter_share"] == (65_664 + 1_290) / 76_522


def test_the_header_names_the_model_that_was_timed(run):
    done = run("mlp", "--batch", "1", "-n", "1", "-w", "0", "--ops", "reference", "--json", "t.json")
    assert re.search(says("mlp", "1 image", "1 rank"), done.output), done.output
    assert json.loads(Path("t.json").read_text())["header"]["model"] == "mlp"


def padded(message) -> int:
    """Elements of the arena: each parameter begins at a multiple of 16."""
    from ringtrain.nn import spec
    from ringtrain.nn.arena import lay_out

    return lay_out(spec.load_model(message["header"]["model"]).graph().parameters())[-1].stop


def test_the_table_of_a_terminal(capsys):
    row = {
        "layer": "conv1", "kind": "Conv2D+ReLU", "way": "direct", "forward_s": 0.25, "backward_s": 0.5, "share": 0.75,
        "forward_flops_per_s": 3e9, "backward_flops_per_s": None, "peak_share": 0.625, "exchange_bytes": 1234,
    }  # fmt: skip
    loss = row | {"layer": "loss", "kind": "", "way": "", "forward_s": None, "share": 0.25, "exchange_bytes": 0}
    total = {"forward_s": 0.25, "backward_s": 0.5, "exchange_bytes": 1234}
    print_whole(layer_table([row, loss], total, framed=True))
    lines = capsys.readouterr().out.splitlines()
    conv, last = (next(line for line in lines if line.strip().startswith(name)) for name in ("conv1", "all layers"))
    assert conv.split() == [
        "conv1",
        "Conv2D+ReLU",
        "direct",
        "250.000",
        "500.000",
        "75.0",
        "3.0",
        "62",
        "1,234",
        "█" * 12,
    ]
    assert next(line for line in lines if line.strip().startswith("loss")).split()[-1] == "█" * 4
    assert last.split() == ["all", "layers", "250.000", "500.000", "1,234"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lennet",), says("did you mean 'lenet'?")),
        (("digits", "--ops", "cpuu"), says("did you mean 'cpu'?")),
        (("digits", "--json", "no/t.json"), says("no/t.json")),
    ],
)
def test_refusals(run, arguments, message):
    done = run(*arguments, "-n", "1")
    assert done.return_value == 2
    assert re.search(message, done.stderr)


def test_numbers_out_of_range(run):
    assert "is not in the range x>=1" in str(run("digits", "--batch", "0").exception)
    assert "is not in the range x>=1" in str(run("digits", "-n", "0").exception)
