"""``ringtrain time`` as a user runs it."""

import json
import re

import pytest

from ringtrain.bench.layers.layer_rows import layer_table
from ringtrain.memory.arena import lay_out
from ringtrain.nn import spec
from ringtrain.show.tables import print_whole
from tests.says import says

COMMAND = "time"
QUICK = ("digits", "--batch", "5", "-n", "3", "--ops", "reference")


def test_plain_where_there_is_no_terminal(ringtrain):
    code, output, err = ringtrain(*QUICK)
    assert code == 0, err
    lines = output.splitlines()
    assert lines[0].startswith("ringtrain")
    assert lines[0] == says("digits", "5 examples", "1 rank", "float32", "reference")
    assert lines[1].startswith("medians of 3 iterations after 2; cores by rank: ")
    assert lines[2].split()[:2] == ["layer", "kind"] and any(line.startswith("all layers") for line in lines)
    last = [says("fc1 to fc2"), says("ms", "exchange"), says("gradients", "optimizer"), says("peak", "GFLOP")]
    assert lines[-4:] == last and "\x1b" not in output


def test_json_has_everything(ringtrain, tmp_path):
    code, _, err = ringtrain(*QUICK, "--json", tmp_path / "t.json", "--dtype", "float64")
    assert code == 0, err
    content = json.loads((tmp_path / "t.json").read_text())
    header, total = content["header"], content["totals"]
    assert (header["model"], header["batch"], header["dtype"], header["optimizer"]) == ("digits", 5, "float64", "adamw")
    padded = lay_out(spec.load_model("digits").graph().parameters())[-1].stop  # to multiples of 16
    assert header["ranks"] == 1 and header["peak_bytes"] > header["held_bytes"] == 4 * 8 * padded
    assert all(len(row["forward_samples_s"]) == 3 for row in content["rows"] if row["kind"])
    beside = {row["layer"]: row["backward_s"] for row in content["rows"] if not row["kind"]}
    assert list(beside) == ["input", "loss", "update", "between layers"] and beside["input"] > 0
    assert min(header[name] for name in ("host_cores", "peak_flops_per_s", "peak_bytes_per_s")) > 0
    conv, flat = (next(row for row in content["rows"] if row["layer"] == name) for name in ("conv1", "flat"))
    assert conv["peak_share"] > 0 and conv["way"] == "" and flat["peak_share"] is None
    assert total["exchange_bytes"] == 8 * 76_522 and total["images_per_s"] > 0
    assert total["fc_parameter_share"] == (65_664 + 1_290) / 76_522


def test_the_header_names_the_model_that_was_timed(ringtrain, tmp_path):
    path = tmp_path / "t.json"
    _, output, err = ringtrain("mlp", "--batch", 1, "-n", 1, "-w", 0, "--ops", "reference", "--json", path)
    assert re.search(says("mlp", "1 example", "1 rank"), output), err
    assert json.loads(path.read_text())["header"]["model"] == "mlp"


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
    figures = ["250.000", "500.000", "75.0", "3.0", "62", "1,234"]
    assert conv.split() == ["conv1", "Conv2D+ReLU", "direct", *figures, "█" * 12]
    assert next(line for line in lines if line.strip().startswith("loss")).split()[-1] == "█" * 4
    assert last.split() == ["all", "layers", "250.000", "500.000", "1,234"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lennet",), says("did you mean 'lenet'?")),
        (("digits", "--ops", "cpuu"), says("did you mean 'cpu'?")),
        (("digits", "--json", "no/t.json"), says("no/t.json")),
        (("digits", "--batch", "0"), "is not in the range x>=1"),
        (("digits", "-n", "0"), "is not in the range x>=1"),
    ],
)
def test_refusals(ringtrain, arguments, message):
    code, _, err = ringtrain("-n", "1", *arguments)
    assert code == 2 and re.search(message, err)
