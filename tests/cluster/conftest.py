"""Hosts on this machine by scripts/cluster. Without namespaces these tests are skipped, with the reason."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mpi.conftest import PATIENCE_S, UNDRAWN, find_mpirun

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "cluster"
PROGRAMS = Path(__file__).parent / "programs"
# mpirun itself ends what hangs, and says of each rank whether it runs.
LIMIT = {"MPIEXEC_TIMEOUT": f"{PATIENCE_S - 30:.0f}", "PRTE_MCA_rtos": "report-state-on-timeout"}
COUNTED = re.compile(r"^host(\d+) received (\d+) sent (\d+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """What a command on a cluster did. received, sent: bytes at each host's interface while it ran."""

    returncode: int
    stdout: str
    stderr: str
    received: tuple[int, ...]
    sent: tuple[int, ...]


def environment(**more) -> dict:
    """The Python of these tests, and this checkout's ringtrain, on all hosts."""
    path = os.pathsep.join(filter(None, [str(UNDRAWN), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **LIMIT, "RINGTRAIN_VENV": sys.prefix, "PYTHONPATH": path, **more}


@pytest.fixture(scope="session")
def script():
    """script(arguments of scripts/cluster, timeout, NAME=value...) → CompletedProcess. Needs no namespaces."""

    def start(*arguments, timeout: float = PATIENCE_S, **more) -> subprocess.CompletedProcess:
        """Run to the end, or fail the test: the hosts go with the script, and the pipes with the hosts."""
        command = [str(SCRIPT), *map(str, arguments)]
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            return subprocess.run(command, timeout=timeout, cwd=ROOT, env=environment(**more), **streams)
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"{' '.join(command)} was not done after {timeout} s:\n{late.stdout}\n{late.stderr}")

    return start


@pytest.fixture(scope="session")
def offered(script):
    """What can be had here, in the words of scripts/cluster check. Skipped where hosts cannot."""
    checked = script("check")
    if checked.returncode:
        pytest.skip(f"scripts/cluster check: {checked.stdout.strip() or checked.stderr.strip()}")
    return dict(line.split(": ", 1) for line in checked.stdout.splitlines())


@pytest.fixture(scope="session")
def launcher():
    """Skipped where there is no mpirun."""
    find_mpirun()


@pytest.fixture(scope="session")
def hosts(script, offered):
    """hosts(options and command of scripts/cluster run) → Ran."""

    def run(*arguments, timeout: float = PATIENCE_S) -> Ran:
        done = script("run", "--stats", *arguments, timeout=timeout)
        counted = sorted(tuple(map(int, numbers)) for numbers in COUNTED.findall(done.stderr))
        received, sent = tuple(row[1] for row in counted), tuple(row[2] for row in counted)
        return Ran(done.returncode, done.stdout, COUNTED.sub("", done.stderr), received, sent)

    return run


@pytest.fixture(scope="session")
def cluster(hosts, offered, launcher):
    """cluster(ranks of each host, arguments of python, rate) → Ran. A program of tests/cluster/programs goes by its
    name. Skipped where links cannot be shaped, if they are to be."""

    def run(ranks, arguments, rate: str | None = None, timeout: float = PATIENCE_S) -> Ran:
        if rate and offered["--rate"] != "yes":
            pytest.skip(f"scripts/cluster check: --rate: {offered['--rate']}")
        options = ["-n", len(ranks), "--ranks", ",".join(map(str, ranks)), *(["--rate", rate] if rate else [])]
        return hosts(*options, "--", "python", *named(arguments), timeout=timeout)

    return run


def named(arguments) -> list[str]:
    return [str(PROGRAMS / a) if (PROGRAMS / str(a)).is_file() else str(a) for a in arguments]


@pytest.fixture
def kept(script, offered):
    """The name of two hosts that are kept until the test ends."""
    name = f"test-{os.getpid()}"
    started = script("up", "-n", 2, "--name", name)
    assert started.returncode == 0, started.stderr
    yield name
    script("down", "--name", name)


@pytest.fixture
def process():
    """process(arguments of scripts/cluster) → a running Popen, its output one stream; ended with the test."""
    started = []

    def start(*arguments) -> subprocess.Popen:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [str(SCRIPT), *named(arguments)]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment(), **streams))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()
        one.stdout.close()  # not read to its end: should the cluster outlive the script, there is none
