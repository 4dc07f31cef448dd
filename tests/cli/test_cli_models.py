"""ringtrain models list and show."""

import pytest
from click.testing import CliRunner

from ringtrain.cli.models import _bytes, _scaled, models
from ringtrain.errors import ConfigError, ModelError

SMALL = """
summary = "a [bold] one"
input = { shape = [8, 8, 3], mean = "image", scale = 0.5, std = "channel", pad = 2, flip = true }
layers = [
  { name = "conv", kind = "Conv2D", channels = 4, kernel = 3 },
  { name = "relu", kind = "ReLU" },
  { name = "flat", kind = "Flatten" },
  { name = "out", kind = "Linear", units = 5 },
]
[recipe]
batch = 25
optimizer = "sgd"
decay_bias_norm = false
"""
RESULTS = """
[[results]]
data = "toy"
test_accuracy = 0.75
command = "mpirun -np 2 ringtrain train --model small"
"""


def run(*arguments):
    return CliRunner().invoke(models, list(arguments))


def row(output, start):
    lines = [line for line in output.splitlines() if line.replace("│", " ").split()[:1] == [start]]
    return [cell.strip() for cell in lines[0].split("│")[1:-1]]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_list_names_every_model_with_its_size_in_three_digits():
    done = run("list")
    assert done.exit_code == 0
    assert row(done.output, "lenet")[:5] == ["lenet", "28x28x1", "10", "431,080", "4.62 M"]
    assert row(done.output, "resnet18")[3] == "11,173,962"
    assert row(done.output, "digits")
    expected = {0: "", 999: "999", 1000: "1 k", 999_600: "1 M", 1_112_885_258: "1.11 G", 2e15: "2e+03 T"}
    assert {count: _scaled(count) for count in expected} == expected
    assert (_bytes(0), _bytes(256), _bytes(14_400)) == ("", "256 B", "14.4 kB")


def test_show_prints_layers_costs_recipe_and_results_also_for_another_batch(small):
    done = run("show", str(small))
    assert done.exit_code == 0
    assert "small: a [bold] one" in done.output
    assert (
        "input 8x8x3, minus the image mean, times 0.5, divided by the channel std, cropped at random from 2 pixels"
        in done.output
    )
    assert "activations of 25" in done.output
    assert row(done.output, "conv") == ["conv", "Conv2D", "6x6x4", "112", "7.92 k", "14.4 kB", "448 B"]
    assert row(done.output, "relu") == ["relu", "ReLU (in conv)", "6x6x4", "", "144", "", ""]
    assert row(done.output, "flat") == ["flat", "Flatten", "144", "", "", "", ""]
    assert row(done.output, "total")[3] == "837"
    assert 'recipe: batch = 25, optimizer = "sgd", decay_bias_norm = false' in done.output
    assert "results" not in done.output
    small.write_text(SMALL + RESULTS)
    done = run("show", str(small), "--batch", "50")
    assert row(done.output, "conv")[5] == "28.8 kB"
    assert 'results: data = "toy", test_accuracy = 0.75, command = "mpirun -np 2 ringtrain' in done.output
    small.write_text(SMALL.split("[recipe]")[0])
    done = run("show", str(small))
    assert "activations of 1 " in done.output
    assert "recipe" not in done.output


def test_errors_are_those_of_the_model_file(small):
    assert isinstance(run("show", "lenett").exception, ModelError)
    small.write_text(SMALL.replace("batch = 25", "batch = 0"))
    error = run("show", str(small)).exception
    assert isinstance(error, ConfigError)
    assert "small.toml: batch is 0" in str(error)
    assert run("show", "lenet", "--batch", "0").exit_code == 2
