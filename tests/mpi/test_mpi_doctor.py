"""`ringtrain doctor` under a real mpirun."""

import json

import pytest

pytestmark = pytest.mark.mpi


def test_two_ranks_are_looked_at_together(mpirun, tmp_path):
    done = mpirun(2, ["-m", "ringtrain", "doctor", "--device", "cpu", "--path", tmp_path, "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert not any(line["ranks"] for line in lines.values()), lines  # they agree in all
    assert lines["ranks"]["text"].startswith("2 ranks on 1 node: ")
    assert lines["disk"]["status"] in ("ok", "warn") and not list(tmp_path.iterdir())
