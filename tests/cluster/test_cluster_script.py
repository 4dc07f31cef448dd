"""scripts/cluster by itself: what it refuses, exit codes, and that nothing is left of it."""

import os
import shutil
import stat

import pytest

from tests.cluster.conftest import PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "cluster: wanted a verb: one of those above\n"),
        ("rnu", "cluster: unknown verb 'rnu': wanted one of "),
        ("run", "cluster: run wants a command; scripts/cluster --help shows how\n"),
        ("run -n", "cluster: -n wants a value after it\n"),
        ("run -n 0 -- true", "cluster: -n 0: wanted a number of hosts, 1 to 99\n"),
        ("run --ranks 2,x -- true", "cluster: --ranks 2,x: wanted ranks on a host, 1 or more, or as 3,2\n"),
        ("run --rate fast -- true", "cluster: --rate fast: wanted a rate, as 1gbit or 100mbit, or none\n"),
        ("run --delay 1 -- true", "cluster: --delay 1: wanted a time, as 50us or 1ms, or none\n"),
        (
            "run --rtae 1gbit true",
            "cluster: run has no option --rtae; it takes: -n --ranks --rate --delay --stats --raw",
        ),
        ("up --name a/b", "cluster: --name a/b: wanted letters, digits, - and _\n"),
        ("up 3", "cluster: up does not take '3'\n"),
        ("kill-host", "cluster: kill-host wants a host; scripts/cluster --help shows how\n"),
        ("exec 0", "cluster: exec wants a command after the host\n"),
        ("stats --name nobody", "cluster: cluster 'nobody' is not up: scripts/cluster up makes it\n"),
    ],
)
def test_wrong_use(script, tmp_path, arguments, words):
    done = script(*arguments.split(), TMPDIR=str(tmp_path))
    assert done.returncode == 2
    assert words in done.stderr and done.stdout == ""


def test_help_is_the_head_of_the_script(script):
    done = script("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Pose as a cluster") and done.stdout.endswith("such cluster [default]\n")


def fake(folder, name: str, text: str) -> str:
    """A PATH on which a tool does something else."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def no_namespaces(tmp_path):
    return fake(tmp_path, "unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")


def test_without_namespaces_it_says_so(script, tmp_path, no_namespaces):
    why = "no namespaces are to be had here: unshare: unshare failed: Operation not permitted; be root, or "
    environment = {"PATH": no_namespaces, "TMPDIR": str(tmp_path), "RINGTRAIN_VENV": str(tmp_path / "venv")}
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    checked = script("check", **environment)
    assert checked.returncode == 1 and checked.stdout.startswith(f"hosts: no: {why}")
    for arguments in (["run", "--raw", "--", "true"], ["up"]):
        done = script(*arguments, **environment)
        assert done.returncode == 2 and done.stderr.startswith(f"cluster: {why}")


def test_a_missing_tool_is_named(script, tmp_path):
    for tool in ("bash", "dirname", "id"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = script("run", "--", "true", PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "cluster: no ip on this machine; on Debian: apt install iproute2 util-linux hostname\n"


def test_a_kernel_that_cannot_shape_is_named(script, offered, tmp_path):
    path = fake(tmp_path, "tc", 'echo "Error: Specified qdisc kind is unknown." >&2; exit 2')
    for option, value, words in (("--rate", "1gbit", "tbf"), ("--delay", "1ms", "netem")):
        done = script("run", option, value, "--raw", "--", "true", PATH=path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"cluster: {option} {value}: tc refuses it; it needs a kernel with {words} ")
    assert script("run", "--raw", "--", "true", PATH=path).returncode == 0


def test_what_tc_is_told(script, offered, tmp_path):
    """A delay goes around the rate, at the host's end alone; the rate holds at both ends, with 200 us of it at once."""
    path = fake(tmp_path, "tc", f'echo "$*" >>{tmp_path}/told')
    assert script("run", "-n", 1, "--rate", "1gbit", "--delay", "2ms", "--raw", "--", "true", PATH=path).returncode == 0
    calls = (tmp_path / "told").read_text().splitlines()
    assert [line for line in calls if " add " in line] == [
        "qdisc add dev eth0 root handle 1: netem delay 2ms limit 100000",
        "qdisc add dev eth0 parent 1:1 handle 2: tbf rate 1gbit burst 75000b limit 8mb",
        "qdisc add dev link0 root handle 2: tbf rate 1gbit burst 75000b limit 8mb",
    ]


def test_the_status_is_the_commands(hosts, cluster):
    ran = hosts("--raw", "--", "sh", "-c", "hostname; pwd; exit 7")
    assert (ran.returncode, ran.stderr) == (7, "")
    assert ran.stdout.startswith("host0\n/") and len(ran.sent) == 2
    ends = "from mpi4py import MPI; MPI.Finalize(); raise SystemExit(3)"
    assert cluster((1, 1), ["-c", ends]).returncode == 3


def test_ranks_for_other_hosts_are_refused(hosts):
    ran = hosts("-n", 3, "--ranks", "2,1", "--", "true")
    assert ran.returncode == 2
    assert ran.stderr.startswith("cluster: --ranks names 2 hosts, and there are 3: give one number for all, or one for")


def test_kept_hosts(script, kept):
    again = script("up", "--name", kept)
    assert again.returncode == 2 and again.stderr.startswith(f"cluster: cluster '{kept}' is up: drop it by")
    done = script("exec", "--name", kept, "1", "sh", "-c", "hostname; echo $TMPDIR; exit 4")
    assert done.returncode == 4
    assert done.stdout.splitlines()[0] == "host1" and done.stdout.endswith("/host1.tmp\n")
    assert script("shape", "--name", kept).returncode == 0
    assert [line.split()[0] for line in script("stats", "--name", kept).stdout.splitlines()] == ["host0", "host1"]
    assert script("down", "--name", kept).returncode == 0
    assert script("stats", "--name", kept).returncode == 2


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_nothing_is_left_when_the_script_ends(process, offered, end):
    """Processes of the cluster hold the pipe: it ends with the last of them."""
    running = process("run", "--raw", "--", "sh", "-c", "sleep 1000 & echo started; exec sleep 1000")
    assert running.stdout.readline() == "started\n"
    getattr(running, end)()
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode < 0
