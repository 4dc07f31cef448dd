"""Ranks on several hosts: who they are, right sums, bytes at the interface, training, and the end of a host."""

import json
import re

import pytest

from ringtrain.allreduce.catalogue import ALGORITHMS
from ringtrain.collectives.catalogue import make_schedule
from ringtrain.collectives.inspect.cost import Fabric, schedule_cost
from ringtrain.collectives.topology import filled
from tests.cluster.conftest import PATIENCE_S, ROOT
from tests.docs.markdown import steps
from tests.runs import FC_NET, records
from tests.tiers import thorough

pytestmark = [pytest.mark.cluster, pytest.mark.mpi]


@pytest.mark.parametrize("ranks", [(1, 3, 1), *thorough(((2, 2),))])
def test_hosts_are_nodes(cluster, ranks):
    ran = cluster(ranks, ["places.py"])
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["nodes"] == len(ranks)
    assert seen["places"] == [
        [node, local, count, f"host{node}"] for node, count in enumerate(ranks) for local in range(count)
    ]


@pytest.mark.parametrize("ranks", [(2, 2), *thorough(((2, 1, 1),))])
def test_every_algorithm_is_right(cluster, tmp_path, ranks):
    sizes = ["-b", "4", "-e", "70000", "-f", "130"]
    options = ["-c", "1", "-n", "2", "-w", "0", "--json", tmp_path / "a.json"]
    ran = cluster(ranks, ["-m", "ringtrain", "bench-allreduce", *sizes, *options])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    kept = json.loads((tmp_path / "a.json").read_text())
    rows = kept["rows"]
    assert kept["header"]["hosts"] == {f"host{node}": count for node, count in enumerate(ranks)}
    assert {row["algorithm"] for row in rows} == set(ALGORITHMS)
    refused = [row for row in rows if row["algorithm"] in ("mapped", "stream")]  # which are for one node
    ran_here = [row for row in rows if row not in refused]
    assert {(row["status"], row["wrong"], row["nodes"]) for row in ran_here} == {("ok", 0, len(ranks))}
    assert all(("routed" in row["transport"]) == (row["algorithm"] == "routed") for row in ran_here)
    assert {row["status"] for row in refused} == {"refused"}
    assert len(rows) == 3 * len(ALGORITHMS)


def test_the_lab_sheet_measures_on_hosts(hosts):
    """The command of docs/lab.md, with fewer iterations. Its rows are those that the sheet shows, but for figures."""
    commands = [step for step in steps((ROOT / "docs" / "lab.md").read_text()) if "scripts/cluster" in step.command]
    (words,) = (step.command.split()[2:] for step in commands)
    ran = hosts(*words, "-n", "2", "-w", "0")
    assert ran.returncode == 0, ran.stderr
    rows, shown = (
        re.findall(r"(?m)^ +(\d+) +(\w+) messages", text) for text in (ran.stdout, "\n".join(commands[0].shown))
    )
    assert rows == shown and len(rows) == 4


@pytest.mark.parametrize(
    "ranks, algorithm",
    [((2, 1, 1), "hierarchical"), *thorough(((2, 2), "ring"), ((2, 2), "hierarchical"), ((2, 1, 1), "ring"))],
)
def test_bytes_at_the_interface_are_the_schedules(cluster, ranks, algorithm):
    nbytes, times = 8 << 20, 3
    ran = cluster(ranks, ["allreduces.py", algorithm, nbytes, times])
    assert ran.returncode == 0, ran.stderr
    topology = filled(ranks)
    predicted = schedule_cost(make_schedule(algorithm, topology), topology, nbytes, Fabric()).interface
    assert [sent / times for sent in ran.sent] == pytest.approx(predicted, rel=0.05)
    assert sum(ran.received) == pytest.approx(sum(ran.sent), rel=0.01)


def test_a_link_is_as_slow_as_it_is_asked_to_be(cluster):
    """2 MiB through a link of 50 Mbit/s take 0.34 s, less what may pass at once."""
    ran = cluster((1, 1), ["allreduces.py", "ring", 2 << 20, 1], rate="50mbit")
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) > 0.3


def test_training_does_not_depend_on_where_ranks_are(cluster, tmp_path):
    (tmp_path / "net.toml").write_text(FC_NET)
    options = ["--model", tmp_path / "net.toml", "--data", "digits", "--ops", "reference", "--algorithm", "ring"]
    ends = []
    for ranks in ((2, 2), (4,)):
        out = tmp_path / f"hosts-{len(ranks)}"
        ran = cluster(ranks, ["-m", "ringtrain", "train", *options, "--iterations", 5, "--out", out])
        assert ran.returncode == 0, ran.stderr
        ends.append(records(out)[-1])
    assert [(end["event"], end["ranks"]) for end in ends] == [("end", 4)] * 2
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


@pytest.mark.thorough
def test_scripts_of_pytorch_run_on_several_hosts(cluster):
    """The store, groups, and every collective of PyTorch, between nodes too."""
    pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
    script = str(ROOT / "tests" / "mpi" / "programs" / "pytorch" / "collects.py")
    ran = cluster((2, 1), ["-W", "ignore", "-m", "ringtrain.torch", script])
    assert (ran.returncode, ran.stdout) == (0, "all is well on 3 ranks\n"), ran.stdout + ran.stderr


def test_a_killed_host_ends_the_run(process, script, kept, launcher):
    running = process("mpirun", "--name", kept, "--ranks", 2, "--", "python", "goes_on.py")
    for line in running.stdout:
        if line == "all are there\n":
            break
    assert script("kill-host", "host1", "--name", kept).returncode == 2  # options come first
    assert script("kill-host", "--name", kept, "host1").returncode == 0
    running.communicate(timeout=PATIENCE_S)
    assert script("stats", "--name", kept).stdout.split()[0::5] == ["host0"]
    gone = script("exec", "--name", kept, "host1", "true")
    assert (gone.returncode, gone.stderr) == (2, "cluster: no host 'host1': there are host0\n")
