"""``ringtrain doctor`` as a user runs it."""

import configparser
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtrain.cli.doctor import doctor
from ringtrain.errors import NO_PACKAGE
from ringtrain.launch.doctor import checks, host
from ringtrain.launch.doctor.doctor import FAIL, OK, WARN, Line
from tests.new_process import in_new_process
from tests.says import says


def run(*arguments):
    return CliRunner().invoke(doctor, list(map(str, arguments)), standalone_mode=False)


def test_one_process_without_a_device_in_lines_and_as_json(tmp_path):
    done = run("--device", "cpu", "--path", tmp_path)
    assert done.return_value == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("ok    python  ") and "Python 3." in lines[0]
    assert all(line.startswith(("ok  ", "warn", "    ")) for line in lines[:-1])
    assert lines[-1].endswith(" ok") and any(
        line[4:].startswith("  disk") for line in lines
    )  # ok, or warn on a busy one
    assert any("1 rank on 1 node" in line for line in lines)
    done = run("--device", "cpu", "--json", "--quick", "--path", tmp_path)
    assert done.return_value == 0, done.output
    output = json.loads(done.output)
    assert output["status"] in ("ok", "warn") and len(output["hosts"]) == 1
    assert {"status", "name", "text", "advice", "ranks"} == set(output["lines"][0])
    assert "disk" not in [line["name"] for line in output["lines"]]


def test_a_failure_ends_with_1(monkeypatch):
    monkeypatch.setattr(checks, "CHECKS", [lambda context: [Line(FAIL, "heart", "has stopped", "call someone")]])
    done = run("--quick")
    assert (done.return_value, done.output) == (1, "fail  heart  has stopped\n             → call someone\n1 fail\n")
    assert json.loads(run("--json", "--quick").output)["status"] == "fail"


@pytest.mark.parametrize("status, code, strict", [(OK, 0, 0), (WARN, 0, 1), (FAIL, 1, 1)])
def test_strict_ends_with_1_for_a_warning_too(monkeypatch, status, code, strict):
    monkeypatch.setattr(checks, "CHECKS", [lambda context: [Line(status, "heart", "beats")]])
    assert (run("--quick").return_value, run("--quick", "--strict").return_value) == (code, strict)


def test_a_check_that_does_not_end_is_told_and_ends_with_4(tmp_path):
    program = (
        "import time; from ringtrain.launch.doctor import checks, doctor; from ringtrain.cli.main import run\n"
        "def sleeps(context): time.sleep(60)\n"
        "checks.CHECKS, doctor.examine.__defaults__ = [sleeps], (0.05,)\n"
        "run(['doctor', '--quick'])"
    )
    done = in_new_process(program)
    assert done.returncode == 4, done.stderr
    assert "the check of sleeps, on rank 0" in done.stderr and "in sleeps" in done.stderr  # and its stack


@pytest.mark.parametrize("flag", ["--device", "--mpi-cuda"])
def test_unknown_values_are_refused(flag):
    done = run(flag, "gpu")
    assert done.exit_code != 0 and "'gpu' is not one of" in str(done.exception.format_message())


# ── packages that are not installed ───────────────────────────────────────────────────────────────────────────────
def without(packages, *arguments):
    """A process that does not find these."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in packages)
    program = f"import sys\n{blocked}from ringtrain.cli.main import run\nsys.exit(run(sys.argv[1:]))"
    return in_new_process(program, *arguments, timeout=120)


def test_missing_packages_are_lines(tmp_path):
    missing = "h5py", "tomli_w"
    done = without(missing, "doctor", "--device", "cpu", "--quick", "--json", "--path", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    failed = {line["name"]: line for line in json.loads(done.stdout)["lines"] if line["status"] == FAIL}
    assert failed.keys() == {"python"}
    assert failed["python"]["text"] == says("h5py, tomli_w")
    assert failed["python"]["advice"] == says("h5py tomli_w")


@pytest.mark.parametrize("package", ["tomli_w", "numpy", "h5py"])
def test_a_missing_package_is_one_message(package, tmp_path):
    done = without([package], "train", "--iterations", "1", "--out", tmp_path)
    assert done.returncode == 2 and done.stderr == says(NO_PACKAGE.format(package=package))


def test_a_module_of_ringtrain_that_is_missing_is_a_defect():
    done = without(["ringtrain.train.start.recover"], "train")
    assert done.returncode == 1 and "Traceback" in done.stderr and "ModuleNotFoundError" in done.stderr


def test_the_packages_that_are_looked_for_are_those_that_are_required():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    required = {
        re.match(r"[\w-]+", line)[0].replace("-", "_")
        for line in setup["options"]["install_requires"].split("\n")
        if line.strip() and not line.startswith("#")
    }
    assert set(host.NEEDED) == required - {"mpi4py"}
