"""A script of PyTorch is recorded, and its variants are compared. Runs where torch is installed."""

import json
import sys
from pathlib import Path

import pytest

from ringtrain.plan.layer_times import LayerTimes
from ringtrain.report.comparison.logs import read_run

pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
pytestmark = pytest.mark.mpi

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ringtrain.torch import log_step

dist.init_process_group("gloo")
torch.manual_seed(int(os.environ["RINGTRAIN_SEED"]))
net = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.Adam(net.parameters(), 0.1)
for step in range(6):
    optimizer.zero_grad()
    loss = net(torch.randn(3, 8)).square().mean()
    loss.backward()
    optimizer.step()
    log_step(step=step, loss=loss)
    if dist.get_rank() == 0: print(f"acc {10 * step}%")
    if "raise" in sys.argv and dist.get_rank() == 1 and step == 3: raise ValueError("no more")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("options", [(), ("--sync", "averaging", "--average-every", "3")])
def test_a_script_is_recorded(mpirun, script, tmp_path, options):
    more = ("--out", tmp_path / "run", "--seed", "5", "--metric", "accuracy=acc (.*)")
    done = mpirun(2, ["-W", "ignore", "-m", "ringtrain.torch", *map(str, (*options, *more, script))])
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run", "a")
    assert run.outcome == "done" and run.start["model"] == "Linear" and run.start["seed"] == 5
    assert [point.iteration for point in run.train] == [1, 2, 3, 4, 5, 6] and run.train[-1].examples == 36
    assert all(point.loss > 0 and point.lr == 0.1 for point in run.train)
    assert [point.accuracy for point in run.train] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert min(run.ranks["bytes_sent"]) > 0 and run.end["exposed_share"] >= 0
    assert run.ranks["weights_bytes"] == [144, 144] and min(run.ranks["state_bytes"]) >= 288
    assert run.start["strategy"].startswith("averaging every 3" if options else "allreduce")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_steps_of_a_script_are_profiled(mpirun, script, tmp_path, ranks):
    log = ("--out", str(tmp_path / "run"), "--seed", "5", "--profile")
    done = mpirun(ranks, ["-W", "ignore", "-m", "ringtrain.torch", *log, str(script)])
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert content["parameters"] == {"module.weight": [4, 8], "module.bias": [4]}
    assert [each["bytes"] for each in content["buckets"]] == [144] and content["header"]["batch"] == 3 * ranks
    times = LayerTimes([str(tmp_path / "run" / "profile.json")]).of_rank(3, ranks)
    assert [layer.name for layer in times.layers] == ["forward", "module"] and min(times.update_s, times.beside_s) > 0
    assert all(layer.forward_s + layer.backward_s > 0 for layer in times.layers)


def test_a_profile_of_a_strategy_or_of_two_modules_is_refused(mpirun, script, tmp_path):
    out = ("--out", str(tmp_path / "run"), "--seed", "5")
    done = mpirun(1, ["-m", "ringtrain.torch", *out, "--profile", "--sync", "gossip", str(script)])
    assert done.returncode == 2 and "--sync gossip" in done.stderr
    script.write_text(
        SCRIPT.replace("optimizer =", "other = DistributedDataParallel(torch.nn.Linear(8, 4)); optimizer =")
    )
    done = mpirun(1, ["-W", "ignore", "-m", "ringtrain.torch", *out, "--profile", str(script)])
    assert done.returncode and "--profile" in done.stderr and "another DistributedDataParallel" in done.stderr
    script.write_text(
        SCRIPT.replace("net = DistributedDataParallel(torch.nn.Linear(8, 4))", "net = torch.nn.Linear(8, 4)")
    )
    done = mpirun(
        1, ["-W", "ignore", "-m", "ringtrain.torch", *out[2:], "--out", str(tmp_path / "b"), "--profile", script]
    )
    assert done.returncode == 0 and "no profile is written" in done.stderr


@pytest.mark.thorough
def test_variants_are_compared_and_the_error_of_a_rank_is_a_reason(alone, mpirun_command, script, tmp_path):
    programs = Path(mpirun_command(2, [])[0]).parent
    for out, arguments, code in (("c", (), 0), ("d", ("raise",), 1)):
        command = ["compare", "-n", "2", "--sync", "allreduce,gossip", "--out", tmp_path / out, "--seeds", "2"]
        command = ["-m", "ringtrain", *command, "--", sys.executable, "-m", "ringtrain.torch", script, *arguments]
        done = alone(command, PATH=f"{programs}:/usr/bin:/bin")
        assert done.returncode == code, done.stdout + done.stderr
        rows = json.loads((tmp_path / out / "compare.json").read_text())["rows"]
        assert [row["outcome"] for row in rows] == ["failed" if code else "done"] * 4
        assert all("ValueError: no more" in row["problem"] for row in rows if code)
