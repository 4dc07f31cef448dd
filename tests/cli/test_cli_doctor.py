"""``ringtrain doctor`` as a user runs it."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ringtrain.cli.doctor import doctor
from ringtrain.launch import checks
from ringtrain.launch.doctor import FAIL, OK, WARN, Line


def run(*arguments):
    return CliRunner().invoke(doctor, list(map(str, arguments)), standalone_mode=False)


def test_one_process_without_a_device(tmp_path):
    done = run("--device", "cpu", "--path", tmp_path)
    assert done.return_value == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("ok    python  ") and "Python 3." in lines[0]
    assert all(line.startswith(("ok  ", "warn", "    ")) for line in lines[:-1])
    assert lines[-1].endswith(" ok") and any(line.startswith("ok    disk") for line in lines)
    assert any("1 rank on 1 node" in line for line in lines)


def test_json(tmp_path):
    done = run("--device", "cpu", "--json", "--quick", "--path", tmp_path)
    assert done.return_value == 0, done.output
    told = json.loads(done.output)
    assert told["status"] in ("ok", "warn") and len(told["hosts"]) == 1
    assert {"status", "name", "text", "advice", "ranks"} == set(told["lines"][0])
    assert "disk" not in [line["name"] for line in told["lines"]]


def test_a_failure_ends_with_1(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [lambda visit: [Line(FAIL, "heart", "has stopped", "call someone")]])
    done = run("--quick")
    assert (done.return_value, done.output) == (1, "fail  heart  has stopped\n             → call someone\n1 fail\n")
    assert json.loads(run("--json", "--quick").output)["status"] == "fail"


@pytest.mark.parametrize("status, code, strict", [(OK, 0, 0), (WARN, 0, 1), (FAIL, 1, 1)])
def test_strict_ends_with_1_for_a_warning_too(monkeypatch, status, code, strict):
    monkeypatch.setattr(checks, "CHECKS", [lambda visit: [Line(status, "heart", "beats")]])
    assert (run("--quick").return_value, run("--quick", "--strict").return_value) == (code, strict)


def test_a_check_that_does_not_end_is_told_and_ends_with_4(tmp_path):
    program = (
        "import time; from ringtrain.launch import checks, limit; from ringtrain.cli.main import run\n"
        "def sleeps(visit): time.sleep(60)\n"
        "checks.CHECKS, limit.Limit.__init__.__defaults__ = [sleeps], (0.05,)\n"
        "run(['doctor', '--quick'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert re.match(
        r"ringtrain doctor: rank 0 on \S+: the check of sleeps has not ended after 0.05 s, in ", done.stderr
    )


@pytest.mark.parametrize("flag", ["--device", "--mpi-cuda"])
def test_unknown_values_are_refused(flag):
    done = run(flag, "gpu")
    assert done.exit_code != 0 and "'gpu' is not one of" in str(done.exception.format_message())
