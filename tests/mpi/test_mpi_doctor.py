"""`ringtrain doctor` under a real mpirun."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.says import says

pytestmark = pytest.mark.mpi


def test_two_ranks_are_looked_at_together(mpirun, tmp_path):
    done = mpirun(2, ["-m", "ringtrain", "doctor", "--device", "cpu", "--path", tmp_path, "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert not any(line["ranks"] for line in lines.values()), lines  # they agree in all
    assert lines["ranks"]["text"].startswith("2 ranks on 1 node: ")
    assert re.fullmatch(says("windows", "up"), lines["one-sided"]["text"])
    assert lines["disk"]["status"] in ("ok", "warn") and not list(tmp_path.iterdir())


def test_ulfm_that_is_on_is_seen(mpirun_command, alone, tmp_path):
    from ringtrain.transport.mpi import libmpi

    if libmpi.vendor() != "Open MPI" or not libmpi.ulfm_support()[0]:
        pytest.skip("this MPI has no ULFM")
    program = "from ringtrain.transport.world import fault_tolerance; print(fault_tolerance())"
    line = mpirun_command(1, ["-c", program])
    start = f"import os; os.execv({line[0]!r}, {[line[0], '--with-ft', 'ulfm', *line[1:]]!r})"
    assert Path(line[0]).exists() and alone(["-c", start]).stdout == "(True, True)\n", sys.executable
