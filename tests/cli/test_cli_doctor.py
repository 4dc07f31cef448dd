"""``ringtrain doctor`` as a user runs it."""

import json

import pytest
from click.testing import CliRunner

from ringtrain.cli.doctor import doctor
from ringtrain.launch import checks
from ringtrain.launch.doctor import FAIL, Line


def run(*arguments):
    return CliRunner().invoke(doctor, list(arguments), standalone_mode=False)


def test_one_process_without_a_device():
    done = run("--device", "cpu")
    assert done.return_value == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("ok    python  ") and "Python 3." in lines[0]
    assert all(line.startswith(("ok  ", "warn", "    ")) for line in lines)
    assert any("1 rank on 1 node" in line for line in lines)


def test_json():
    done = run("--device", "cpu", "--json")
    assert done.return_value == 0, done.output
    told = json.loads(done.output)
    assert told["status"] in ("ok", "warn") and len(told["hosts"]) == 1
    assert {"status", "name", "text", "advice", "ranks"} == set(told["lines"][0])


def test_a_failure_ends_with_1(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [lambda visit: [Line(FAIL, "heart", "has stopped", "call someone")]])
    done = run()
    assert (done.return_value, done.output) == (1, "fail  heart  has stopped\n             → call someone\n")
    assert json.loads(run("--json").output)["status"] == "fail"


@pytest.mark.parametrize("flag", ["--device", "--mpi-cuda"])
def test_unknown_values_are_refused(flag):
    done = run(flag, "gpu")
    assert done.exit_code != 0 and "'gpu' is not one of" in str(done.exception.format_message())
