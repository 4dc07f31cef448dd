"""A real Slurm of pretended nodes on this machine, by scripts/slurm-cluster. Skipped, with the reason, where it is not
asked for, or cannot be had."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "scripts" / "slurm-cluster"
HELD = Path(__file__).parent / "programs" / "held.py"
TWO_RANKS = ("mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none")
PAUSE_S = 0.2  # between two looks at what jobs have done
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RINGTRAIN_MAPPING": "--map-by :OVERSUBSCRIBE --bind-to none",  # pretended nodes have the same cores
}
NET = """
summary = "for tests"
input = { shape = [8, 8, 1], mean = "image", std = "channel", pad = 1, flip = true }
layers = [
  { name = "flat", kind = "Flatten" },
  { name = "drop", kind = "Dropout", rate = 0.3 },
  { name = "fc", kind = "Linear", units = 10 },
]
[recipe]
batch = 30
lr = 0.05
momentum = 0.9
"""


@dataclass(frozen=True)
class Slurm:
    """One cluster, and the folder where its jobs are submitted."""

    state: Path
    work: Path
    environ: dict

    def call(self, *command, **environ) -> str:
        words, environ = list(map(str, command)), {**self.environ, **environ}
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.work, env=environ, timeout=900)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script, *flags, options=(), **environ) -> "Job":
        """``script``: a path, or a name in scripts."""
        command = ["sbatch", "--parsable", *options, ROOT / "scripts" / script, *flags]
        return Job(self, int(self.call(*command, **environ)))

    def write(self, *words) -> Path:
        """The script of `ringtrain slurm WORDS`, for two nodes."""
        options = ["--nodes", "2", "--ranks-per-node", "1", "--time", "5", "--output", "own.sbatch", "--force"]
        self.call("ringtrain", "slurm", *options, *words)
        return self.work / "own.sbatch"

    def hold(self, iteration: int) -> None:
        """The next run stays there, counted from 0, until it is told to stop, or :meth:`let_go`."""
        (self.work / "held").write_text(str(iteration))

    def let_go(self) -> None:
        (self.work / "held").unlink()

    def are_held(self) -> bool:
        """Whether both ranks are there."""
        return all((self.work / f"held-by-{rank}").exists() for rank in range(2))

    def kill_node(self, name: str) -> None:
        self.call(CLUSTER, "kill-node", self.state, name)


@dataclass(frozen=True)
class Job:
    slurm: Slurm
    number: int

    def shown(self, pattern: str) -> str:
        return re.search(pattern, self.slurm.call("scontrol", "show", "job", self.number))[1]

    @property
    def state(self) -> str:
        return self.shown(r"JobState=(\w+)")

    @property
    def code(self) -> int:
        return int(self.shown(r"ExitCode=(\d+):"))

    @property
    def log(self) -> str:
        logs = list(self.slurm.work.glob(f"*-{self.number}.log"))
        return logs[0].read_text(errors="replace") if logs else ""

    @property
    def folder(self) -> Path:
        return self.slurm.work / "runs" / f"ringtrain-{self.number}"

    def records(self, kind: str) -> list[dict]:
        path = self.folder / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return [record for record in records if record["event"] == kind]

    @property
    def iterations(self) -> list[int]:
        return [record["iteration"] for record in self.records("iteration")]

    def until(self, holds, timeout: float = 900) -> None:
        """Wait until ``holds()``; fail with the job's log."""
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"{self.state} after {timeout} s:\n{self.log}"
            threading.Event().wait(PAUSE_S)

    def end(self, timeout: float = 900) -> str:
        """Its last state."""
        self.until(lambda: self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), timeout)
        return self.state


@pytest.fixture
def slurm(tmp_path):
    """A cluster of two nodes with two pretended GPUs each."""
    if os.environ.get("RINGTRAIN_TEST_SLURM") != "1":
        pytest.skip("takes minutes, and starts Slurm's daemons: asked for by RINGTRAIN_TEST_SLURM=1")
    checked = subprocess.run([CLUSTER, "check"], capture_output=True, text=True, timeout=60)
    if checked.returncode:
        pytest.skip(checked.stderr.strip())
    state, work = tmp_path / "slurm", tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    program = work / "bin" / "ringtrain"  # this checkout's, on all nodes
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HELD}" "$@"\n')
    program.chmod(0o755)
    (work / "net.toml").write_text(NET)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "RINGTRAIN_"))}
    path = os.pathsep.join([str(work / "bin"), str(Path(sys.executable).parent), environ["PATH"]])
    python = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    environ |= {**ENVIRONMENT, "PATH": path, "PYTHONPATH": python, "SLURM_CONF": str(state / "slurm.conf")}
    started = subprocess.run([CLUSTER, "up", state, "2", "2"], capture_output=True, text=True, timeout=120)
    assert started.returncode == 0, started.stderr
    yield Slurm(state, work, environ)
    subprocess.run([CLUSTER, "down", state], capture_output=True, timeout=120)
